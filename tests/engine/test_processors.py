"""What is done to logits before a choice: by hand where a definition has an edge, and as laws.

`tests/conformance/test_random_settings.py` holds all of it against transformers.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.settings import Asked, asked
from engine import Engine, SamplingParams
from engine.errors import RequestError
from engine.generate.processors import History, eta_cutoff, narrowed, penalised, processed
from engine.generate.sample import Sampler
from tests.engine import tiny

GONE = -math.inf
FLAT = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def after(row: list[float], prompt: list[int], answer: list[int], **options: Any) -> list[float]:
    history = History(prompt, answer, options.pop("ends", frozenset()), options.pop("limit", None))
    values: list[float] = penalised(torch.tensor(row), SamplingParams(**options), history).tolist()
    return values


def banned(prompt: list[int], answer: list[int], **options: Any) -> set[int]:
    """Of six equal tokens."""
    return {i for i, x in enumerate(after(FLAT, prompt, answer, **options)) if x == GONE}


# -- penalties -------------------------------------------------------------------------------------


def test_a_bias_is_added_and_minus_infinity_bans() -> None:
    row = after([1.0, GONE, -2.0], [0], [], logit_bias={0: 0.5, 1: 9.0, 2: GONE})
    assert row == [1.5, GONE, GONE]


def test_a_repetition_penalty_makes_every_token_that_came_less_likely() -> None:
    """Also where logits are negative; what was out stays out, and 0 stays 0."""
    row = after([2.0, -1.0, 0.0, GONE, 3.0], [0, 1, 1], [2, 3], repetition_penalty=2.0)
    assert row == [1.0, -2.0, 0.0, GONE, 3.0]


def test_a_repetition_penalty_below_one_rewards() -> None:
    assert after([2.0, -1.0], [0, 1], [], repetition_penalty=0.5) == [4.0, -0.5]


def test_presence_counts_once_frequency_each_time_and_only_the_answer() -> None:
    row = after(FLAT, [1, 1, 1], [2, 2, 3], presence_penalty=1.0, frequency_penalty=0.25)
    assert row == [0.0, 0.0, -1.5, -1.25, 0.0, 0.0]
    assert after(FLAT, [1], [], presence_penalty=1.0) == FLAT


def test_penalties_come_after_biases_and_counts_after_the_repetition_penalty() -> None:
    row = after(
        [1.0, 0.0],
        [1],
        [0],
        logit_bias={0: 3.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
    )
    assert row[0] == (1 + 3) / 2 - 0.5


# -- bans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "out"),
    [
        (1, {1, 2, 3}),  # nothing comes twice
        (2, {1, 3}),  # after 2 came 3 and 1
        (3, {3}),  # after 1 2
        (4, set()),
        (7, set()),  # as long as the text: it came once
        (8, set()),
        (99, set()),
    ],
)
def test_no_tokens_in_a_row_come_twice_in_prompt_and_answer(n: int, out: set[int]) -> None:
    assert banned([1, 2, 3, 2], [1, 1, 2], no_repeat_ngram_size=n) == out


@pytest.mark.parametrize(
    ("word", "out"),
    [
        ([4], {4}),
        ([2, 3, 5], {5}),  # begun in the prompt
        ([3, 5], {5}),
        ([1, 2, 5], set()),  # the text begins with it, and goes on otherwise
        ([0, 0, 0, 1, 2, 3, 5], set()),  # longer than the text
    ],
)
def test_the_last_token_of_a_bad_word_is_banned_behind_the_others(
    word: list[int], out: set[int]
) -> None:
    assert banned([1, 2], [3], bad_words_ids=[word]) == out


def test_an_end_token_alone_is_no_bad_word() -> None:
    words = [[4], [5], [3, 4]]
    assert banned([1], [2], bad_words_ids=words, ends=frozenset({4})) == {5}
    assert banned([1], [3], bad_words_ids=words, ends=frozenset({4})) == {4, 5}


@pytest.mark.parametrize(("n", "out"), [(0, set()), (2, set()), (3, {4, 5}), (9, {4, 5})])
def test_before_min_tokens_no_end_token_is_chosen(n: int, out: set[int]) -> None:
    assert banned([1, 2, 3], [0, 0], min_tokens=n, ends=frozenset({4, 5})) == out


def test_what_is_forced_is_the_only_token_left_even_where_it_is_banned() -> None:
    words = {"bad_words_ids": [[4], [1]], "min_tokens": 2, "ends": frozenset({4}), "limit": 2}
    assert banned([1], [], forced_bos_token_id=1, **words) == {0, 2, 3, 4, 5}
    assert banned([1, 1], [], forced_bos_token_id=1, **words) == {1, 4}  # no prompt of one token
    assert banned([1], [2], forced_eos_token_id=4, **words) == {0, 1, 2, 3, 5}
    assert banned([1], [], forced_eos_token_id=4, **words) == {1, 4}  # another may follow


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"bad_words_ids": [[0], [1], [2]]},
        {"no_repeat_ngram_size": 1},
        {"logit_bias": dict.fromkeys(range(3), GONE)},
        {"min_tokens": 3},
    ],
)
def test_where_all_tokens_are_banned_one_sentence_says_so(
    temperature: float, options: dict[str, Any]
) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, **options))
    ends = {0, 1, 2} if "min_tokens" in options else {5}
    with pytest.raises(RequestError, match="no token is left to choose: bad words, biases,"):
        sampler(torch.tensor([1.0, 2.0, 3.0]), History([0, 1, 2], [], ends, 9))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 5e-324},
        {"logit_bias": {0: 1.7e308}, "repetition_penalty": 0.1},
        {"frequency_penalty": -1e308},
    ],
)
def test_penalties_beyond_what_a_number_can_be_are_refused(
    temperature: float, options: dict[str, Any]
) -> None:
    """They would be inf - inf on the way to a probability, and an error of the draw."""
    sampler = Sampler(SamplingParams(temperature=temperature, **options))
    with pytest.raises(RequestError, match="beyond the largest number; ask for smaller"):
        sampler(torch.tensor([1.0, 2.0]), History([0], [0, 0, 1]))


# -- cuts ------------------------------------------------------------------------------------------

CUTS = (
    {"top_k": 1},
    {"top_p": 0.01},
    {"min_p": 1.0},
    {"typical_p": 0.01},
    {"epsilon_cutoff": 0.99},
    {"eta_cutoff": 0.99},
)


def left(row: list[float], **options: Any) -> list[int]:
    values = narrowed(torch.tensor(row).double(), SamplingParams(temperature=1.0, **options))
    return values.isfinite().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("options", CUTS, ids=str)
def test_a_cut_never_takes_the_last_token(options: dict[str, Any]) -> None:
    assert left([0.5], **options) == [0]
    assert left([GONE, 2.0, GONE], **options) == [1]


@pytest.mark.parametrize("options", CUTS, ids=str)
def test_a_cut_brings_nothing_back(options: dict[str, Any]) -> None:
    assert set(left([GONE, 1.0, 1.0, GONE], **options)) <= {1, 2}


def test_a_top_k_beyond_what_bans_have_left_keeps_that() -> None:
    params = SamplingParams(temperature=1.0, top_k=3, bad_words_ids=[[0], [1]])
    assert processed(torch.zeros(4), params).isfinite().tolist() == [False, False, True, True]


def test_typical_tokens_are_not_always_the_likely_ones() -> None:
    """Beside one token of 0.4 the 64 that share the rest are about as surprising as is expected."""
    row = [math.log(0.4), *[math.log(0.6 / 64)] * 64]
    assert left(row, typical_p=0.4) == list(range(1, 65))


def test_typical_keeps_all_that_are_as_near_as_the_last() -> None:
    assert left([0.0] * 5, typical_p=0.3) == [0, 1, 2, 3, 4]


def test_epsilon_keeps_what_has_just_that_probability_and_the_best_in_any_case() -> None:
    row = [math.log(p) for p in (0.5, 0.25, 0.125, 0.125)]
    assert left(row, epsilon_cutoff=0.2) == [0, 1]
    assert left(row, epsilon_cutoff=0.6) == [0]
    assert left([0.0] * 4, epsilon_cutoff=0.25) == [0, 1, 2, 3]


def test_eta_is_softer_where_the_choice_is_wide_open() -> None:
    """Among 400 tokens of about the same probability epsilon alone would leave the best."""
    row = [0.1, *[0.0] * 400]
    assert left(row, epsilon_cutoff=0.004) == [0]
    assert len(left(row, eta_cutoff=0.004)) == 401
    # Where it is nearly certain, both thresholds are the same.
    sure = [math.log(p) for p in (0.99, 0.006, 0.003, 0.001)]
    assert left(sure, eta_cutoff=0.004) == left(sure, epsilon_cutoff=0.004) == [0, 1]


def test_eta_below_all_numbers_of_float32_cuts_nothing() -> None:
    row = torch.tensor([-800.0, 0.0], dtype=torch.float64)
    assert eta_cutoff(row, 5e-324).isfinite().all()


# -- laws ------------------------------------------------------------------------------------------


@tiny.examples(100)
@given(question=asked())
def test_what_is_asked_neutrally_changes_nothing(question: Asked) -> None:
    row = question.row.logits()
    params = SamplingParams(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        typical_p=1.0,
        epsilon_cutoff=0.0,
        eta_cutoff=0.0,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        no_repeat_ngram_size=0,
        logit_bias={},
        bad_words_ids=[],
    )
    history = History(question.past.prompt, question.past.answer)
    assert not params.penalises
    assert torch.equal(processed(row, params, history), row.double() - row.max())


@tiny.examples(100)
@given(question=asked(), seed=st.integers(0, 2**63 - 1))
def test_only_what_is_left_is_drawn_and_the_logits_stay_as_they_are(
    question: Asked, seed: int
) -> None:
    row, past = question.row.logits(), question.past
    before = row.clone()
    params = SamplingParams(**question.settings, seed=seed)
    history = History(past.prompt, past.answer, frozenset(past.ends), past.limit)
    sampler = Sampler(params)
    try:
        token = sampler(row, history)
    except RequestError:
        assert bool((penalised(row, params, history) == GONE).all())
    else:
        assert processed(row, params, history)[token] > GONE
    assert torch.equal(row, before)


# -- the model's own vocabulary --------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("model"), tiny.CASE))


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {50: 1.0}},
        {"bad_words_ids": [[1, 50]]},
        {"bad_words_ids": [[50, 1]]},
        {"forced_bos_token_id": 50},
        {"forced_eos_token_id": 50},
    ],
    ids=str,
)
def test_a_token_that_the_model_has_not_is_refused_before_anything_runs(
    engine: Engine, options: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match="token id 50 is unknown: the model has ids 0 to 49"):
        engine.generate([1, 2], SamplingParams(**options))


def test_an_end_that_the_model_has_not_can_be_asked_for_and_never_comes(engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, min_tokens=3, stop_token_ids=[50])
    assert engine.generate([1, 2], params).finish_reason == "length"


def test_where_all_is_banned_the_request_alone_fails(engine: Engine) -> None:
    params = SamplingParams(max_tokens=3, bad_words_ids=[[token] for token in range(50)])
    with pytest.raises(RequestError, match="no token is left to choose"):
        engine.generate([1, 2], params)
    assert len(engine.generate([1, 2], SamplingParams(max_tokens=3)).token_ids) == 3


def test_a_forced_token_comes_though_the_structure_forbids_it() -> None:
    """As in transformers, where tokens are forced after what a prefix allows."""

    class NothingButOne:
        done = False

        def mask(self) -> torch.Tensor:
            return torch.tensor([False, True, False])

        def push(self, token: int) -> None:
            raise AssertionError("nothing is followed here")

    choose = Sampler(SamplingParams(forced_eos_token_id=2), NothingButOne())
    logits = torch.tensor([3.0, 1.0, 2.0])
    assert choose(logits, History([0], [], limit=2)) == 1
    assert choose(logits, History([0], [1], limit=2)) == 2
