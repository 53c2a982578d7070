"""Choosing a token: greedy ties, the cuts against twins over float64, seeds, and parameters' checks."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engine import BeamSearch, SamplingParams
from engine.errors import LockstepError, RequestError
from engine.generate.processors import History, processed
from engine.generate.sample import Sampler
from tests.engine import tiny

# Few distinct values, so that ties are common; multiples of 1/64, so that what is no tie stays none
# whatever is rounded on the way to a probability.
logit = st.sampled_from([-30.0, -3.0, -1.0, 0.0, 0.5, 1.0, 1.25, 2.0, 7.0]) | st.integers(
    -20 * 64, 20 * 64
).map(lambda n: n / 64)
logits = st.lists(logit, min_size=1, max_size=12)
temperatures = st.sampled_from([0.1, 0.7, 1.0, 1.5]) | st.floats(0.1, 5)


def shares(row: list[float]) -> list[float]:
    """Softmax in float64; -inf has no share."""
    top = max(row)
    powers = [math.exp(x - top) for x in row]
    return [p / math.fsum(powers) for p in powers]


def twin(row: list[float], params: SamplingParams) -> list[float]:
    """The distribution that a token is drawn from, written as the definitions read."""
    row = [x / params.temperature for x in row]
    if params.top_k is not None:
        kth = sorted(row, reverse=True)[: params.top_k][-1]
        row = [x if x >= kth else -math.inf for x in row]
    if params.top_p is not None:
        part = shares(row)
        likely_first = sorted(range(len(row)), key=lambda i: (-part[i], i))
        kept, mass = set[int](), 0.0
        for i in likely_first:
            if mass >= params.top_p:
                break
            kept.add(i)
            mass += part[i]
            assume(abs(mass - params.top_p) > 1e-9)  # a rounding may decide there
        row = [x if i in kept else -math.inf for i, x in enumerate(row)]
    if params.min_p is not None:
        part = shares(row)
        limit = params.min_p * max(part)
        assume(all(abs(p - limit) > 1e-9 or p == max(part) for p in part))
        row = [x if p >= limit else -math.inf for x, p in zip(row, part, strict=True)]
    return shares(row)


def test_top_p_counts_what_top_k_has_left() -> None:
    """The other way round, half the mass would take two of these tokens."""
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5)
    assert processed(row, params).isfinite().tolist() == [True, False, False, False]


@given(
    row=logits,
    temperature=temperatures,
    top_k=st.none() | st.integers(-1, 14),
    top_p=st.none() | st.floats(0.01, 0.999),
    min_p=st.none() | st.floats(0, 1),
)
def test_support_and_probabilities_are_those_of_the_twin(
    row: list[float],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> None:
    """Each cut alone and all together, in transformers' order."""
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = torch.tensor(row).tolist()  # what float32 logits can be
    want = twin(row, params)
    got = processed(torch.tensor(row), params).softmax(-1).tolist()
    assert [p > 0 for p in got] == [p > 0 for p in want]
    assert got == pytest.approx(want, rel=1e-9, abs=1e-300)


@given(row=logits)
def test_greedy_takes_the_lowest_id_of_the_largest(row: list[float]) -> None:
    row = torch.tensor(row).tolist()
    for _ in range(3):
        assert Sampler(SamplingParams())(torch.tensor(row)) == row.index(max(row))


@given(row=logits, seed=st.integers(0, 2**63 - 1))
def test_only_what_the_cuts_leave_is_drawn(row: list[float], seed: int) -> None:
    params = SamplingParams(temperature=2.0, top_k=3, top_p=0.8, seed=seed)
    left = processed(torch.tensor(row), params).isfinite()
    sampler = Sampler(params)
    assert all(left[sampler(torch.tensor(row))] for _ in range(5))


def test_draws_follow_the_distribution() -> None:
    """Chi-square with 3 degrees of freedom, its 0.999 quantile; the seed makes the outcome fixed."""
    row = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
    sampler = Sampler(SamplingParams(temperature=1.0, seed=11))
    n = 4000
    counts = Counter(sampler(torch.tensor(row)) for _ in range(n))
    wanted = [0.1 * n, 0.2 * n, 0.3 * n, 0.4 * n]
    assert sum((counts[i] - w) ** 2 / w for i, w in enumerate(wanted)) < 16.27


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-5])
def test_a_temperature_near_zero_is_almost_greedy(temperature: float) -> None:
    """Dividing before shifting gives inf - inf: NaN probabilities and a crash of the draw."""
    row = torch.tensor([3.0, -2.0, 3.5, 1.0])
    assert Sampler(SamplingParams(temperature=temperature))(row) == 2


def test_top_k_keeps_all_that_tie_with_the_last() -> None:
    kept = processed(
        torch.tensor([1.0, 1.0, 1.0, 0.0]), SamplingParams(temperature=1.0, top_k=2)
    ).isfinite()
    assert kept.tolist() == [True, True, True, False]


@pytest.mark.parametrize(("top_p", "n"), [(0.5, 2), (0.6, 3), (0.75, 3)])
def test_top_p_stops_at_the_token_that_reaches_it_and_prefers_lower_ids(
    top_p: float, n: int
) -> None:
    """Four equal tokens have exactly a quarter each."""
    kept = processed(torch.zeros(4), SamplingParams(temperature=1.0, top_p=top_p)).isfinite()
    assert kept.tolist() == [i < n for i in range(4)]


def test_top_p_prefers_lower_ids_in_a_large_vocabulary_too() -> None:
    kept = processed(torch.zeros(1 << 16), SamplingParams(temperature=1.0, top_p=0.25)).isfinite()
    assert kept.nonzero()[:, 0].tolist() == list(range(1 << 14))


def test_a_seed_repeats_and_does_not_touch_the_global_generator() -> None:
    row = torch.linspace(-1, 1, 50)
    params = SamplingParams(temperature=1.0, seed=5)
    state = torch.random.get_rng_state()
    first, second = Sampler(params), Sampler(params)
    torch.manual_seed(1)
    a = [first(row) for _ in range(10)]
    torch.manual_seed(2)
    b = [second(row) for _ in range(10)]
    assert a == b
    torch.random.set_rng_state(state)
    Sampler(SamplingParams(temperature=1.0))(row)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_without_a_seed_runs_differ_even_when_the_global_one_is_fixed() -> None:
    row = torch.zeros(1000)
    runs = set()
    for _ in range(3):
        torch.manual_seed(0)
        sampler = Sampler(SamplingParams(temperature=1.0))
        runs.add(tuple(sampler(row) for _ in range(8)))
    assert len(runs) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[1.0, math.nan, 2.0], [1.0, math.inf], [-math.inf, -math.inf]])
def test_logits_that_are_not_finite_are_an_error(temperature: float, row: list[float]) -> None:
    """A NaN is the largest number to argmax: its token would come out as if it were an answer."""
    with pytest.raises(LockstepError, match=r"logits are not finite.*try float32"):
        Sampler(SamplingParams(temperature=temperature))(torch.tensor(row))


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
    ({"max_tokens": 0, "prompt_logprobs": 0, "beams": BeamSearch(2)}, "max_tokens .* got 0"),
    ({"max_tokens": -3}, "max_tokens .* got -3"),
    ({"max_tokens": 2.5}, "max_tokens .* got 2.5"),
    ({"max_tokens": "8"}, "max_tokens .* got '8'"),
    ({"max_tokens": True}, "max_tokens .* got True"),
    ({"max_tokens": None}, "max_tokens .* got None"),
    ({"temperature": -0.1}, "temperature must be a number 0 or more, got -0.1"),
    ({"temperature": math.inf}, "temperature .* got inf"),
    ({"temperature": math.nan}, "temperature .* got nan"),
    ({"temperature": "hot"}, "temperature .* got 'hot'"),
    ({"temperature": None}, "temperature .* got None"),
    ({"top_k": -2}, "top_k must be a whole number of at least -1, got -2"),
    ({"top_k": 1.5}, "top_k .* got 1.5"),
    ({"top_p": 0}, "top_p must be a number above 0 and at most 1, got 0"),
    ({"top_p": 1.01}, "top_p .* got 1.01"),
    ({"top_p": math.nan}, "top_p .* got nan"),
    ({"min_p": -0.1}, "min_p must be a number between 0 and 1, got -0.1"),
    ({"min_p": 2}, "min_p .* got 2"),
    ({"min_p": "0.1"}, "min_p .* got '0.1'"),
    ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ({"seed": 2**63}, r"seed must be below 2\^63"),
    ({"seed": 1.0}, "seed .* got 1.0"),
    ({"logprobs": -1}, "logprobs must be a whole number of at least 0, got -1"),
    ({"logprobs": True}, "logprobs .* got True"),
    ({"stop": ""}, "a stop string must not be empty"),
    ({"stop": ["a", ""]}, "a stop string must not be empty"),
    ({"stop": [7]}, "a stop string must be a string, got 7"),
    ({"stop": 7}, "stop must be a list, got 7"),
    ({"stop": None}, "stop must be a list, got None"),
    ({"stop_token_ids": 7}, "stop_token_ids must be a list, got 7"),
    ({"stop_token_ids": ["a"]}, "a stop token id must be a whole number of at least 0, got 'a'"),
    ({"stop_token_ids": [-1]}, "a stop token id .* got -1"),
    ({"min_tokens": -1}, "min_tokens must be a whole number of at least 0, got -1"),
    ({"min_tokens": True}, "min_tokens .* got True"),
    ({"min_tokens": 2.0}, "min_tokens .* got 2.0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be at most max_tokens, got 9 and 8"),
    ({"temperature": 10**400}, "temperature must be a number 0 or more, got 1000"),
    ({"top_k": True}, "top_k .* got True"),
    ({"typical_p": 0}, "typical_p must be a number above 0 and at most 1, got 0"),
    ({"typical_p": 1.5}, "typical_p .* got 1.5"),
    ({"typical_p": math.nan}, "typical_p .* got nan"),
    ({"typical_p": True}, "typical_p .* got True"),
    ({"epsilon_cutoff": 1}, "epsilon_cutoff must be a number of at least 0 and below 1, got 1"),
    ({"epsilon_cutoff": -1e-9}, "epsilon_cutoff .* got -1e-09"),
    ({"epsilon_cutoff": math.nan}, "epsilon_cutoff .* got nan"),
    ({"epsilon_cutoff": "0"}, "epsilon_cutoff .* got '0'"),
    ({"eta_cutoff": 1.0}, "eta_cutoff must be a number of at least 0 and below 1, got 1.0"),
    ({"eta_cutoff": -math.inf}, "eta_cutoff .* got -inf"),
    ({"eta_cutoff": False}, "eta_cutoff .* got False"),
    ({"logit_bias": 7}, "logit_bias must map ids to numbers, got 7"),
    ({"logit_bias": [1]}, r"logit_bias must map ids to numbers, got \[1\]"),
    ({"logit_bias": None}, "logit_bias must map ids to numbers, got None"),
    ({"logit_bias": {"a": 1}}, "a token id of logit_bias must be a whole number .* got 'a'"),
    ({"logit_bias": {-1: 1}}, "a token id of logit_bias .* got -1"),
    ({"logit_bias": {True: 1}}, "a token id of logit_bias .* got True"),
    ({"logit_bias": {1: "a"}}, "a value of logit_bias must be a number or -inf, got 'a'"),
    ({"logit_bias": {1: True}}, "a value of logit_bias .* got True"),
    ({"logit_bias": {1: math.inf}}, "a value of logit_bias .* got inf"),
    ({"logit_bias": {1: math.nan}}, "a value of logit_bias .* got nan"),
    ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0, got 0"),
    ({"repetition_penalty": -1.2}, "repetition_penalty .* got -1.2"),
    ({"repetition_penalty": math.inf}, "repetition_penalty .* got inf"),
    ({"repetition_penalty": math.nan}, "repetition_penalty .* got nan"),
    ({"repetition_penalty": None}, "repetition_penalty .* got None"),
    ({"repetition_penalty": True}, "repetition_penalty .* got True"),
    ({"presence_penalty": math.inf}, "presence_penalty must be a number that is finite, got inf"),
    ({"presence_penalty": "1"}, "presence_penalty .* got '1'"),
    ({"presence_penalty": 10**400}, "presence_penalty must be a number that is finite, got 10"),
    ({"frequency_penalty": math.nan}, "frequency_penalty must be a number that is finite, got nan"),
    ({"frequency_penalty": None}, "frequency_penalty .* got None"),
    ({"frequency_penalty": True}, "frequency_penalty .* got True"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be .* at least 0, got -1"),
    ({"no_repeat_ngram_size": 2.0}, "no_repeat_ngram_size .* got 2.0"),
    ({"no_repeat_ngram_size": None}, "no_repeat_ngram_size .* got None"),
    ({"bad_words_ids": 7}, "bad_words_ids must be a list, got 7"),
    ({"bad_words_ids": None}, "bad_words_ids must be a list, got None"),
    ({"bad_words_ids": [7]}, "a bad word must be a list, got 7"),
    ({"bad_words_ids": [[]]}, "a bad word must have at least one token id"),
    ({"bad_words_ids": [[1, -1]]}, "a token id of a bad word must be .* at least 0, got -1"),
    ({"bad_words_ids": [[True]]}, "a token id of a bad word .* got True"),
    ({"bad_words_ids": "no"}, "a token id of a bad word .* got 'n'"),
    ({"forced_bos_token_id": -1}, "forced_bos_token_id must be .* at least 0, got -1"),
    ({"forced_bos_token_id": True}, "forced_bos_token_id .* got True"),
    ({"forced_eos_token_id": 1.0}, "forced_eos_token_id .* got 1.0"),
    ({"forced_eos_token_id": [1]}, r"forced_eos_token_id .* got \[1\]"),
    ({"prompt_logprobs": -1}, "prompt_logprobs must be a whole number of at least 0, got -1"),
    ({"logprobs_mode": "RAW"}, "logprobs_mode must be raw or processed, got 'RAW'"),
    ({"logprobs_mode": None}, "logprobs_mode must be raw or processed, got None"),
    ({"n": 0}, "n must be a whole number of at least 1, got 0"),
    ({"n": 1025}, "at most 1024 answers can be had to one prompt, got 1025"),
    ({"best_of": 0}, "best_of must be a whole number of at least 1, got 0"),
    ({"best_of": 2, "n": 3}, "best_of must be at least n, got 2 and 3"),
    ({"ignore_eos": 1}, "ignore_eos must be true or false, got 1"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output must be true or false"),
)


@pytest.mark.parametrize(("given_", "message"), BAD, ids=[str(given_) for given_, _ in BAD])
def test_a_parameter_that_makes_no_sense_is_refused(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        SamplingParams(**given_)


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])
@pytest.mark.parametrize(
    "value",
    [-(10**5000), [-(10**5000)], np.array([1, 2]), torch.tensor([0.5, 2])],
    ids=["long", "list", "array", "tensor"],
)
def test_whatever_is_given_for_a_parameter_is_refused_in_one_sentence(
    name: str, value: Any
) -> None:
    if name == "stop_token_ids" and isinstance(value, np.ndarray):
        assert SamplingParams(stop_token_ids=value).stop_token_ids == (1, 2)
        return
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})
    assert "\n" not in str(refused.value)


def test_numbers_of_other_types_are_kept_as_pythons_own() -> None:
    """Those of numpy have a largest value, and torch takes no fractions."""
    given_ = SamplingParams(
        max_tokens=np.uint64(9),
        seed=np.int8(100),
        temperature=Fraction(1, 2),
        top_p=np.float32(0.5),
        repetition_penalty=10**30,
        forced_eos_token_id=np.int8(3),
        logit_bias={np.int16(3): Fraction(1, 4)},
        bad_words_ids=[np.array([1, 2])],
        stop_token_ids=np.array([4]),
        n=np.int8(100),
    )
    kept = (given_.max_tokens, given_.seed, given_.forced_eos_token_id, given_.n)
    more = (*given_.logit_bias, *given_.bad_words_ids[0], *given_.stop_token_ids)
    assert {type(number) for number in (*kept, *more)} == {int}
    numbers = (given_.temperature, given_.top_p, given_.repetition_penalty)
    assert {type(number) for number in (*numbers, *given_.logit_bias.values())} == {float}
    assert given_.branch(99).seed == 199
    search = BeamSearch(np.int8(100), length_penalty=Fraction(1, 2))
    assert (type(search.beams), type(search.length_penalty)) == (int, float)


def test_an_end_that_the_model_does_not_have_bans_nothing() -> None:
    history = History(ends=frozenset((1, 7, 10**30)))
    row = processed(torch.zeros(3), SamplingParams(min_tokens=1), history)
    assert row.isfinite().tolist() == [True, False, True]


def test_parameters_are_tidied() -> None:
    """One stop string may stand alone, and 0 or -1 switch top_k off, as in other engines."""
    params = SamplingParams(stop="end", stop_token_ids=[3, 4], top_k=0)
    assert (params.stop, params.stop_token_ids, params.top_k) == (("end",), (3, 4), None)
    assert SamplingParams(top_k=-1).top_k is None
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    bias, words = {3: 1}, [[1, 2]]
    held = SamplingParams(logit_bias=bias, bad_words_ids=words)
    bias[4], words[0][0] = 2, 9  # the caller's own, later
    assert (held.logit_bias, held.bad_words_ids) == ({3: 1}, ((1, 2),))
    assert held.named_ids == {1, 2, 3}
    assert hash(params) == hash(SamplingParams(stop=("end",), stop_token_ids=(3, 4)))


@tiny.examples(20)
@given(k=st.integers(1, 10**7))
def test_a_top_k_beyond_the_vocabulary_cuts_nothing(k: int) -> None:
    row = torch.tensor([0.5, 1.0, 2.0])
    kept = processed(row, SamplingParams(temperature=1.0, top_k=k)).isfinite().sum()
    assert int(kept) == min(k, 3)
