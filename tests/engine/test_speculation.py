"""Speculative decoding: whatever is drafted, the answers are those of plain decoding."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.golden import REPOSITORY_GOLDENS
from engine import DraftModel, Engine, PromptLookup, SamplingParams
from engine.cache import Cache, ContiguousCache, PagedCache, Part, RingCache
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.generate import Completion, Piece
from engine.generate.answer import AnswerText
from engine.generate.draft_model import ModelDrafter
from engine.generate.request import Request
from engine.generate.scheduler import Scheduler
from tests.engine import test_lengths, tiny
from tests.engine.drafters import Told, Wild, with_drafts
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)
from tests.engine.zoo import ZOO

#: Windows, a latent with experts, sinks with experts, learned positions, ropes that follow the length.
MODELS = ("mistral-window", "gemma2", "deepseek-v3", "gpt-oss", "gpt2", "llama-rope-dynamic")
CACHES = ("contiguous", "ring", "paged", "int8")
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=5)

#: Twenty, which repeat themselves: a lookup finds something, right or wrong.
PROMPTS = [[(n * k + k) % (3 + n % 5) + 1 for k in range(3 + n)] for n in range(20)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A tiny llama whose logits have the same bits however they are computed."""
    folder = tiny.save_folder(tmp_path_factory.mktemp("model"), tiny.CASE)
    return Engine.load(folder, batch_invariant=True)


def ids(answers: Sequence[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


# -- the same answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_twenty_answers_are_those_of_plain_decoding_in_every_cache(model: str) -> None:
    """Bit for bit, so that greedy ones agree at ties as well, and drawn ones from the same seed."""
    engine = Engine.load(REPOSITORY_GOLDENS / model, batch_invariant=True)
    prompts = [prompt[: engine.spec.context - 12] for prompt in PROMPTS]
    answers = {params: ids(engine.generate(prompts, params)) for params in (GREEDY, DRAWN)}
    for cache in CACHES:
        if cache == "int8":
            plain = with_drafts(engine, None, cache)
            answers = {params: ids(plain.generate(prompts, params)) for params in answers}
        told = Told(dict(zip(map(tuple, prompts), answers[GREEDY], strict=True)))
        wild = Wild(engine.spec.vocab_size)
        for drafter, params in ((PromptLookup(), GREEDY), (wild, DRAWN), (told, GREEDY)):
            drafting = with_drafts(engine, drafter, cache)
            assert ids(drafting.generate(prompts, params)) == answers[params], (cache, drafter)
            counters = drafting.counters
            assert counters.drafted > 40, (cache, drafter)
            assert drafter is not told or counters.accepted == counters.drafted


@pytest.mark.parametrize("prompt", [4, test_lengths.ORIGINAL - 2, test_lengths.ORIGINAL, 16])
@pytest.mark.parametrize("rope", test_lengths.ROPES)
def test_drafts_end_where_other_frequencies_begin(tmp_path: Path, rope: str, prompt: int) -> None:
    engine = test_lengths.load(tmp_path, rope)
    params = SamplingParams(max_tokens=14, ignore_eos=True, logprobs=0)
    start = test_lengths.IDS[:prompt]
    plain = engine.generate(start, params)
    told = with_drafts(engine, Told({tuple(start): plain.token_ids}), "paged")
    for _ in range(2):  # once more with what the cache has learnt
        done = told.generate(start, params)
        assert done.token_ids == plain.token_ids
        assert done.logprobs is not None
        assert plain.logprobs is not None
        for entry, wanted in zip(done.logprobs, plain.logprobs, strict=True):
            assert entry.logprob == pytest.approx(wanted.logprob, abs=1e-4)
    assert told.counters.accepted == told.counters.drafted > 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=9, n=3, temperature=1.0, seed=1, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=9, best_of=3, temperature=1.0, seed=1),
        SamplingParams(max_tokens=9, repetition_penalty=1.3, presence_penalty=0.5, logprobs=1),
        SamplingParams(max_tokens=9, stop_token_ids=(7, 9), min_tokens=4),
    ],
)
def test_all_that_is_said_of_an_answer_is_the_same(engine: Engine, params: SamplingParams) -> None:
    """Several answers, penalties, ends and log-probabilities, which all follow the tokens one by one."""
    prompts = PROMPTS[::4]
    plain = engine.generate(prompts, params)
    for drafter in (PromptLookup(), Wild(50)):
        drafting = with_drafts(engine, drafter)
        assert drafting.generate(prompts, params) == plain
    assert drafting.counters.drafted > 10


def test_a_stop_string_within_accepted_drafts_ends_the_answer(tmp_path: Path) -> None:
    engine = Engine.load(tiny.text_folder(tmp_path), batch_invariant=True)
    whole = engine.generate("the end", SamplingParams(max_tokens=12, ignore_eos=True))
    told = Told({tuple(whole.prompt_token_ids): whole.token_ids})
    stop = next(text for n in range(4, 12) if len(text := whole.text[n : n + 2]) == 2)
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop=(stop,))
    plain, done = (e.generate("the end", params) for e in (engine, with_drafts(engine, told)))
    assert done == plain
    assert done.finish_reason == "stop"
    pieces: list[Piece] = list(with_drafts(engine, told).stream("the end", params))
    assert "".join(piece.text for piece in pieces) == plain.text


# -- taking back -------------------------------------------------------------------------------------

IDS = [k * 7 % 31 for k in range(26)]
WRONG = [30, 1, 2, 29]


def caches(model: Decoder) -> Iterator[Cache]:
    yield ContiguousCache(model.spec, 32)
    yield RingCache(model.spec, 32, longest_pass=5)
    yield PagedCache(model.spec, 10, 4, poison=True)


@pytest.mark.parametrize("name", ZOO)
def test_what_is_taken_back_leaves_nothing_behind(name: str) -> None:
    """After each token four wrong ones are read, and taken back, all but the last or all of them."""
    model = tiny.decoder_of(ZOO[name])
    whole = tiny.logits(model, IDS)
    for cache in caches(model):
        room = cache.open()
        with torch.inference_mode():
            for at, token in enumerate(IDS):
                batch = torch.tensor([[token, *WRONG]])
                rows = model(batch, cache, [Part(room, 5)])[0]
                assert (rows[0] - whole[at]).abs().max() < 1e-4, (type(cache), at)
                cache.rewind(room, at + 1)
                cache.learn(room, IDS[: at + 1])
        assert room.length == len(IDS)


def test_a_ring_takes_back_a_pass_and_no_more() -> None:
    model = tiny.decoder_of(ZOO["windows"])
    cache = RingCache(model.spec, 32, longest_pass=5)
    room = cache.open()
    room.length = 12
    for length in (6, 13, -1):
        with pytest.raises(RequestError, match=f"cannot go back to {length} of a sequence's 12"):
            cache.rewind(room, length)
    cache.rewind(room, 7)
    assert room.length == 7


def test_tokens_taken_back_are_not_known_any_more() -> None:
    """Also such that were learnt: who begins as they do gets no more than what stayed."""
    model = tiny.decoder(tiny.CASE)
    cache = PagedCache(model.spec, 12, 4, poison=True)
    room = cache.admit(IDS[:10], 10)
    with torch.inference_mode():
        model(torch.tensor([IDS[:10]]), cache, [Part(room, 10)])
        cache.learn(room, IDS[:10])
        cache.rewind(room, 6)
        assert len(room.blocks) == 2
        other = [*IDS[:6], *WRONG]
        rows = model(torch.tensor([WRONG]), cache, [Part(room, 4)])[0]
        cache.learn(room, other)
        cache.close(room)
        assert (rows - tiny.logits(model, other)[6:]).abs().max() < 1e-4
        for tokens in (IDS[:10], other):
            again = cache.admit([*tokens, 3], 11)
            row = model(
                torch.tensor([[*tokens, 3][again.length :]]),
                cache,
                [Part(again, 11 - again.length)],
                last=1,
            )[0, -1]
            assert (row - tiny.logits(model, [*tokens, 3])[-1]).abs().max() < 1e-4
            cache.close(again)
    assert cache.pool.available == 12


# -- who gets how many -------------------------------------------------------------------------------


def test_nobody_makes_room_for_drafts(engine: Engine) -> None:
    """A pool that has just the blocks for two answers: drafts take what is left, and pre-empt nobody."""
    requests = [
        engine.request(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
        for prompt in ([1, 2, 3, 4], [5, 6, 7, 8])
    ]
    cache = PagedCache(engine.spec, 6, 4, poison=True)
    serving = Scheduler(engine.decoder, cache, drafter=Wild(50, tokens=7))
    for request in requests:
        serving.submit(request)
    while not serving.idle:
        serving.step()
    assert serving.counters.preempted == 0
    assert serving.counters.drafted > 0
    for request in requests:
        assert (
            request.tokens[4:]
            == engine.generate(
                request.prompt, SamplingParams(max_tokens=8, ignore_eos=True)
            ).token_ids
        )


def test_a_pass_has_no_more_tokens_of_a_request_than_a_ring_takes(engine: Engine) -> None:
    cache = RingCache(engine.spec, 24, longest_pass=4)
    serving = Scheduler(engine.decoder, cache, step_tokens=16, drafter=Wild(50, tokens=9))
    request = engine.request([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True))
    serving.submit(request)
    while not serving.idle:
        serving.step()
    assert serving.counters.drafted > 0
    assert len(request.pieces) == 12


def test_prompts_have_one_row_of_logits_beside_drafts(engine: Engine) -> None:
    shapes: list[int] = []
    handle = engine.decoder.logits.register_forward_hook(
        lambda module, args, value: shapes.append(value.shape[1])
    )
    try:
        cache = ContiguousCache(engine.spec, 40, batch=2)
        serving = Scheduler(engine.decoder, cache, drafter=Wild(50, tokens=3))
        serving.submit(engine.request([1, 2], SamplingParams(max_tokens=9, ignore_eos=True)))
        serving.step()
        serving.submit(engine.request(tiny.CASE_IDS, SamplingParams(max_tokens=1)))
        serving.step()
    finally:
        handle.remove()
    assert shapes == [1, 1 + 3 + 1]


# -- drafters ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 4), st.integers(1, 5))
def test_a_lookup_finds_what_followed_last(tokens: list[int], ngram: int, n: int) -> None:
    """Against the definition: of all earlier places the one with the longest match, then the last."""
    request = Request(tokens, SamplingParams(), AnswerText(None, ()), limit=9, ends=set())

    def match(end: int) -> int:
        return next(
            (k for k in range(min(ngram, end), 0, -1) if tokens[end - k : end] == tokens[-k:]), 0
        )

    best = max(range(1, len(tokens)), key=lambda end: (match(end), end), default=0)
    wanted = tokens[best : best + n] if best and match(best) else []
    proposed = PromptLookup(ngram, n).propose({request: 9})[request]
    assert list(proposed) == wanted
    assert list(PromptLookup(ngram, n).propose({request: 1})[request]) == wanted[:1]


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_a_model_that_drafts_for_itself_is_always_right(engine: Engine, cache: str) -> None:
    """In several requests at once, with branches, and with what its cache knows of others."""
    plain, made = (with_drafts(engine, None, cache) for _ in range(2))
    made.drafters = DraftModel(engine.checkpoint.path, tokens=3).beside(engine)
    for _ in range(2):
        assert ids(made.generate(PROMPTS, GREEDY)) == ids(plain.generate(PROMPTS, GREEDY))
    counters = made.counters
    assert counters.accepted >= 0.99 * counters.drafted > 200  # not the bits of the target's mode
    # A first token each, then three drafts and a token of its own in each pass, as far as they fit.
    assert counters.steps < 0.5 * plain.counters.steps


def test_a_draft_model_turns_its_keys_anew_where_its_frequencies_change(tmp_path: Path) -> None:
    engine = test_lengths.load(tmp_path, "longrope")
    engine.drafters = DraftModel(engine.checkpoint.path, tokens=3).beside(engine)
    params = SamplingParams(max_tokens=14, ignore_eos=True)
    engine.generate(test_lengths.IDS[:6], params)
    assert engine.counters.accepted == engine.counters.drafted > 0


def test_a_draft_model_without_room_or_context_drafts_nothing(engine: Engine) -> None:
    drafter = ModelDrafter(engine, 4, 8)
    drafter.cache = PagedCache(engine.spec, 2, 4)
    requests = [engine.request(prompt) for prompt in ([2] * 8, [3] * 6, [4] * 3)]
    proposed = drafter.propose(dict.fromkeys(requests, 4))
    assert [len(proposed.get(request, ())) for request in requests] == [0, 2, 0]
    drafter.forget(requests[1])
    assert [len(drafts) for drafts in drafter.propose({requests[2]: 4}).values()] == [4]
    drafter.forget(requests[2])
    assert drafter.cache.rooms == []
    drafter = ModelDrafter(engine, 4, 100)
    request = engine.request([1] * 62, SamplingParams(max_tokens=2))
    assert [len(drafts) for drafts in drafter.propose({request: 4}).values()] == [2]


def test_a_draft_model_reads_no_more_at_once_than_a_pass_may_have(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many long prompts begin together; the drafts are those of passes without a bound."""
    requests = [engine.request(prompt) for prompt in ([2] * 30, [3] * 7, [4, 5] * 9)]
    whole = ModelDrafter(engine, 4, 100).propose(dict.fromkeys(requests, 4))
    monkeypatch.setattr(engine, "step_tokens", 8)
    sizes: list[int] = []
    handle = engine.decoder.embed.register_forward_hook(
        lambda module, given, _: sizes.append(given[0].numel())
    )
    cut = ModelDrafter(engine, 4, 100).propose(dict.fromkeys(requests, 4))
    handle.remove()
    assert cut == whole
    assert [len(drafts) for drafts in cut.values()] == [4, 4, 4]
    assert sum(sizes) == 30 + 7 + 18 + 3 * 3
    assert max(sizes) == 8


def test_models_of_other_vocabularies_are_refused(tmp_path: Path, engine: Engine) -> None:
    other = tiny.save_folder(tmp_path / "a", tiny.CASE | {"vocab_size": 49})
    with pytest.raises(RequestError, match="has 49 tokens in its vocabulary and the model 50"):
        Engine.load(engine.checkpoint.path, speculation=DraftModel(other))
    speaking = tiny.text_folder(tmp_path / "b", "text-llama3")
    file = tmp_path / "c"
    tiny.text_folder(file, "text-llama3")
    tokenizer = json.loads((file / "tokenizer.json").read_text())
    a, b = tokenizer["added_tokens"][:2]
    said = f"token {a['id']} is '{b['content']}' in the draft model and '{a['content']}' in the"
    a["content"], b["content"] = b["content"], a["content"]
    (file / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(RequestError, match=re.escape(said)):
        Engine.load(speaking, speculation=DraftModel(file))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (0, "tokens must be a whole number of at least 1, got 0"),
        (2.5, "tokens must be a whole number of at least 1, got 2.5"),
        (65, "at most 64 tokens can be drafted at once, got 65"),
    ],
)
def test_numbers_of_drafts_that_make_no_sense_are_refused(tokens: Any, said: str) -> None:
    for choice in (PromptLookup, partial(DraftModel, "x")):
        with pytest.raises(RequestError, match=said):
            choice(tokens=tokens)
    with pytest.raises(RequestError, match="ngram must be a whole number of at least 1, got 0"):
        PromptLookup(ngram=0)
