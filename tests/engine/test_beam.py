"""Beam search: what a search may be asked, and that its answers do not depend on how they are computed.

That they are transformers' answers is what the goldens say: tests/conformance/test_beams.py.
"""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.beams import Asked, found_naively
from engine import BeamSearch, Engine, SamplingParams
from engine.cache import Cache
from engine.cli.beams import Searching
from engine.decoder import Decoder
from engine.errors import LockstepError, RequestError
from engine.generate import Completion
from engine.generate.beam import Search
from engine.generate.scheduler import Scheduler
from tests.engine import tiny
from tests.engine.test_lengths import IDS, ORIGINAL, load

PROMPT = [3, 7, 11, 2, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer: vocabulary 50, context 64."""
    return tiny.save_folder(tmp_path_factory.mktemp("silent"), tiny.CASE)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.load(folder)


@pytest.fixture(scope="module")
def invariant(folder: Path) -> Engine:
    """The same model, whose numbers have the same bits however they are computed."""
    return Engine.load(folder, batch_invariant=True)


def with_cache(engine: Engine, cache: str) -> Engine:
    return Engine(engine.decoder, engine.checkpoint, "cpu", "float32", cache=cache)


def params(beams: int = 4, **others: Any) -> SamplingParams:
    how = {key: others.pop(key) for key in ("length_penalty", "early_stopping") if key in others}
    return SamplingParams(beams=BeamSearch(beams, **how), **others)


def found(answers: Completion | list[Completion]) -> list[tuple[list[int], float | None]]:
    answers = answers if isinstance(answers, list) else [answers]
    return [(answer.token_ids, answer.score) for answer in answers]


# -- what it finds ---------------------------------------------------------------------------------


def test_beams_for_every_beginning_find_the_best_answers_there_are(engine: Engine) -> None:
    """50 tokens, two of them: 50 beams lose none of the 2,500 answers."""
    first = engine.logits(PROMPT)[-1].log_softmax(-1)
    second = [engine.logits([*PROMPT, token])[-1].log_softmax(-1) for token in range(50)]
    totals = {(i, j): float(first[i] + second[i][j]) for i, j in product(range(50), repeat=2)}
    best = sorted(totals, key=lambda pair: totals[pair], reverse=True)[:20]
    answers = engine.generate(PROMPT, params(50, n=20, max_tokens=2, length_penalty=0.0))
    assert [tuple(tokens) for tokens, _ in found(answers)] == best
    scores = [score for _, score in found(answers)]
    assert scores == pytest.approx([totals[pair] for pair in best], abs=1e-4)


def test_an_answer_that_ends_at_once_may_win_or_lose_by_the_penalty(engine: Engine) -> None:
    """Two answers of one search: how each is ranked is the sum over the length to a power."""
    for penalty in (-1.0, 0.0, 0.6, 1.0, 2.0):
        asked = params(4, n=4, max_tokens=8, length_penalty=penalty, stop_token_ids=[41, 5])
        answers = engine.generate(PROMPT, asked)
        assert isinstance(answers, list)
        for answer in answers:
            rows = engine.logits([*PROMPT, *answer.token_ids])[len(PROMPT) - 1 : -1].log_softmax(-1)
            total = sum(float(row[t]) for row, t in zip(rows, answer.token_ids, strict=True))
            assert answer.score == pytest.approx(total / len(answer.token_ids) ** penalty, abs=1e-4)
        scores = [answer.score or 0.0 for answer in answers]
        assert scores == sorted(scores, reverse=True)


@tiny.examples(25)
@given(data=st.data())
def test_answers_are_those_of_recomputing_everything(
    invariant: Engine, data: st.DataObject
) -> None:
    """Whatever is asked, in whatever cache, and in passes of whatever size: to the bit."""
    beams = data.draw(st.integers(2, 5), "beams")
    settings = {
        "beams": beams,
        "n": data.draw(st.integers(1, beams), "n"),
        "length_penalty": data.draw(st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]), "penalty"),
        "early_stopping": data.draw(st.sampled_from([True, False, "never"]), "early stopping"),
        "max_tokens": data.draw(st.integers(1, 7), "max tokens"),
        "stop_token_ids": data.draw(st.lists(st.integers(0, 49), max_size=6), "ends"),
        "repetition_penalty": data.draw(st.sampled_from([1.0, 0.7, 1.4]), "repetition"),
        "no_repeat_ngram_size": data.draw(st.sampled_from([0, 2]), "no n-gram twice"),
    }
    prompt = data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=9), "prompt")
    asked = Asked(prompt, settings, [], [], 0.0, 0.0)
    cache = data.draw(st.sampled_from(["ring", "contiguous", "paged"]), "cache")
    engine = with_cache(invariant, cache)
    engine.step_tokens = data.draw(st.sampled_from([1, 3, 512]), "tokens of a pass")
    assert found(engine.generate(prompt, asked.params)) == found(found_naively(invariant, asked))


def test_a_cache_of_whole_numbers_has_beams_too(folder: Path) -> None:
    engine = Engine.load(folder, cache_dtype="int8")
    asked = Asked(PROMPT, {"beams": 4, "n": 4, "max_tokens": 12}, [], [], 0.0, 0.0)
    tokens = [tokens for tokens, _ in found(engine.generate(PROMPT, asked.params))]
    assert tokens == [answer.token_ids for answer in found_naively(engine, asked)]


@pytest.mark.parametrize("prompt", [4, ORIGINAL - 1, ORIGINAL, 16])
def test_beams_go_on_where_all_keys_become_stale(tmp_path: Path, prompt: int) -> None:
    """LongRoPE turns every key anew behind the original context: all beams are read once more there."""
    engine = load(tmp_path, "longrope")
    asked = Asked(IDS[:prompt], {"beams": 3, "n": 3, "max_tokens": 14}, [], [], 0.0, 0.0)
    answers = engine.generate(IDS[:prompt], asked.params)
    naive = found_naively(engine, asked)
    assert isinstance(answers, list)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in naive]
    assert [a.score for a in answers] == pytest.approx([a.score for a in naive], abs=1e-4)


def test_more_ends_than_beams_leave_enough_to_go_on_with(engine: Engine) -> None:
    """The four best tokens are ends, and two beams still have a continuation each."""
    search = Search(engine.request(PROMPT, params(2, stop_token_ids=[1, 2, 3, 4])))
    logits = torch.zeros(1, 50)
    logits[0, 1:5] = 5.0
    assert search.push(logits) == [0, 0]
    assert [beam.tokens for beam in search.running] == [(0,), (5,)]
    assert [beam.tokens for beam in search.ended] == [(1,), (2,)]


# -- what is said of it ----------------------------------------------------------------------------


def test_one_answer_is_one_and_several_prompts_are_a_list(engine: Engine) -> None:
    one = engine.generate(PROMPT, params(3, max_tokens=4))
    assert isinstance(one, Completion)
    both: Any = engine.generate([PROMPT, PROMPT[:2]], params(3, n=2, max_tokens=4))
    assert [len(answers) for answers in both] == [2, 2]
    assert both[0][0].token_ids == one.token_ids
    assert [answer.index for answer in both[0]] == [0, 1]
    assert both[1][0].usage == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    assert engine.generate([], params(3)) == []


def test_log_probabilities_add_up_to_the_score(engine: Engine) -> None:
    for mode in ("raw", "processed"):
        asked = params(3, n=3, max_tokens=6, logprobs=2, logprobs_mode=mode, prompt_logprobs=0)
        answers = engine.generate(PROMPT, asked)
        assert isinstance(answers, list)
        for answer in answers:
            assert answer.logprobs is not None
            assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
            mean = sum(entry.logprob for entry in answer.logprobs) / len(answer.token_ids)
            assert answer.score == pytest.approx(mean, abs=1e-5)
            assert answer.prompt_logprobs is not None
            assert len(answer.prompt_logprobs) == len(PROMPT)


def test_text_and_offsets_are_those_of_the_answers_own_tokens(asset: Any) -> None:
    engine = Engine.load(asset("smollm2-135m"))
    answers = engine.generate("The sky is", params(3, n=2, max_tokens=6, logprobs=0))
    assert isinstance(answers, list)
    for answer in answers:
        assert answer.text == engine.tokenizer.decode(answer.token_ids)
        assert answer.logprobs is not None
        for i, entry in enumerate(answer.logprobs):
            assert entry.text_offset == len(engine.tokenizer.decode(answer.token_ids[:i]))


def test_a_coroutine_gives_the_same(engine: Engine) -> None:
    asked = params(3, n=3, max_tokens=5)
    answers = asyncio.run(engine.agenerate(PROMPT, asked))
    assert found(answers) == found(engine.generate(PROMPT, asked))


# -- what it leaves behind -------------------------------------------------------------------------


def caches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Cache]:
    """The caches that are made from now on."""
    made: list[Cache] = []
    right = engine.new_cache

    def new_cache(*how: Any) -> Cache:
        made.append(right(*how))
        return made[-1]

    monkeypatch.setattr(engine, "new_cache", new_cache)
    return made


@pytest.mark.parametrize("cache", ["ring", "contiguous", "paged"])
def test_all_rooms_are_given_back_and_there_were_never_more_than_beams(
    engine: Engine, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_cache(engine, cache)
    made = caches(other, monkeypatch)
    open_rooms: list[int] = []
    handle = engine.decoder.embed.register_forward_hook(
        lambda *_: open_rooms.append(len(made[-1].rooms))
    )
    other.generate(PROMPT, params(4, max_tokens=9, stop_token_ids=[41, 5, 17]))
    handle.remove()
    assert open_rooms[0] == 1
    assert max(open_rooms) == 4
    assert [len(each.rooms) for each in made] == [0]


def test_an_error_on_the_way_gives_all_rooms_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = caches(engine, monkeypatch)
    right = Decoder.forward
    passes: list[int] = []

    def broken(self: Decoder, ids: torch.Tensor, *how: Any, **more: Any) -> torch.Tensor:
        passes.append(ids.shape[1])
        logits = right(self, ids, *how, **more)
        return logits * torch.nan if len(passes) == 3 else logits

    monkeypatch.setattr(Decoder, "forward", broken)
    with pytest.raises(LockstepError, match="not finite"):
        engine.generate(PROMPT, params(4, max_tokens=9))
    assert passes == [5, 4, 4]
    assert [len(cache.rooms) for cache in made] == [0]


def test_a_beam_that_dies_and_one_that_lives_twice_change_places(engine: Engine) -> None:
    """Equal prompts one after another: nothing of the first search is left in the second."""
    asked = params(5, n=5, max_tokens=12, stop_token_ids=[41])
    first, second = (found(engine.generate(PROMPT, asked)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("cache", ["ring", "contiguous", "paged"])
def test_several_prompts_are_searched_in_one_cache_that_is_there_before_the_first(
    invariant: Engine, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing was computed where memory is short of what the longest of them takes."""
    prompts = [[5], PROMPT * 4, PROMPT, PROMPT * 3, PROMPT * 4]
    asked = params(3, max_tokens=6)
    alone = [invariant.generate(prompt, asked) for prompt in prompts]
    other = with_cache(invariant, cache)
    made = caches(other, monkeypatch)
    assert other.generate(prompts, asked) == alone
    assert [len(each.rooms) for each in made] == [0]
    assert made[0].capacity >= 25
    assert other.generate([], asked) == []


def test_totals_keep_what_single_precision_would_lose(engine: Engine) -> None:
    """Beside a bias of 2^24 nothing of a log-probability is left in it."""
    bias = 2.0**24
    asked = params(2, max_tokens=3, logit_bias={7: bias}, length_penalty=0.0, logprobs=0)
    answer = engine.generate(PROMPT, asked)
    assert answer.token_ids == [7, 7, 7]
    assert answer.score is not None
    assert answer.logprobs is not None
    total = sum(entry.logprob for entry in answer.logprobs)
    assert answer.score - 3 * bias == pytest.approx(total, abs=1e-4)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"beams": 1}, "one beam is no search"),
        ({"beams": 0}, "beams must be a whole number of at least 1, got 0"),
        ({"beams": True}, "beams must be a whole number"),
        ({"beams": 257}, "at most 256 beams, got 257"),
        ({"beams": 2, "length_penalty": 11}, "length_penalty must be a number from -10 to 10"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty must be a number"),
        ({"beams": 2, "length_penalty": "1"}, "length_penalty must be a number"),
        ({"beams": 2, "early_stopping": "always"}, 'true, false or "never", got .always.'),
        ({"beams": 2, "early_stopping": 1}, "early_stopping must be true, false"),
        ({"beams": 2, "early_stopping": None}, "early_stopping must be true, false"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        BeamSearch(**how)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"n": 5}, "at most one answer a beam, and 5 were asked of 4"),
        ({"temperature": 0.5}, "temperature must be 0"),
        ({"best_of": 2}, "leave best_of out"),
        ({"stop": "."}, "stop strings cannot end"),
    ],
)
def test_what_does_not_go_with_a_search_is_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        params(4, **how)
    with pytest.raises(RequestError, match="beams must be a BeamSearch, got 4"):
        SamplingParams(beams=4)  # type: ignore[arg-type]


def test_answers_that_are_known_at_the_end_alone_are_not_streamed(engine: Engine) -> None:
    for stream in (engine.stream, engine.astream):
        with pytest.raises(RequestError, match="a beam search cannot be streamed"):
            stream(PROMPT, params(3))


def test_a_scheduler_does_not_take_it_for_a_request_like_others(engine: Engine) -> None:
    scheduler = Scheduler(engine.decoder, engine.new_cache(64))
    with pytest.raises(RequestError, match="no part of a batch"):
        scheduler.submit(engine.request(PROMPT, params(3)))


def test_answers_that_do_not_exist_are_an_error(engine: Engine) -> None:
    """One token may come, once: there is one answer, and two were asked for."""
    banned = [[token] for token in range(50) if token != 7]
    one = engine.generate(PROMPT, params(2, max_tokens=1, bad_words_ids=banned))
    assert isinstance(one, Completion)
    assert (one.token_ids, one.usage["completion_tokens"]) == ([7], 1)
    with pytest.raises(RequestError, match="2 answers were asked for and the beams found 1"):
        engine.generate(PROMPT, params(2, n=2, max_tokens=1, bad_words_ids=banned))


def test_biases_that_add_up_beyond_the_largest_number_are_an_error(engine: Engine) -> None:
    with pytest.raises(RequestError, match="beyond the largest number; ask for smaller ones"):
        engine.generate(PROMPT, params(2, max_tokens=3, logit_bias={7: 1e308}))


# -- on the command line ---------------------------------------------------------------------------


def test_options_of_a_search_become_one() -> None:
    asked = Searching(beams=4, length_penalty=0.6, early_stopping="never").asked()
    assert asked == {"beams": BeamSearch(4, 0.6, "never")}
    assert Searching(beams=2, early_stopping="true").asked() == {"beams": BeamSearch(2, 1.0, True)}
    assert Searching().asked() == {}


def test_options_that_are_no_search_are_refused() -> None:
    with pytest.raises(RequestError, match="belong to a beam search: add --beams"):
        Searching(length_penalty=2.0).asked()
    with pytest.raises(RequestError, match=r'true, false or "never", got .sometimes.'):
        Searching(beams=4, early_stopping="sometimes").asked()
