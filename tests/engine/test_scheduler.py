"""The scheduler: who gets how many tokens of a pass, who waits, who gives way, and that nobody's answer changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine import Engine, SamplingParams
from engine.cache import ContiguousCache, PagedCache
from engine.errors import LockstepError, RequestError
from engine.generate.request import Request
from engine.generate.scheduler import Said, Scheduler
from tests.engine import tiny

PROMPTS = [
    [3, 7, 11, 2, 9],
    [5],
    tiny.CASE_IDS[:17],
    [8, 8, 1],
    [3, 7, 11, 4],
    [9, 2],
    [1] * 9,
    [6, 4],
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("model"), tiny.CASE))


def asked(engine: Engine, prompt: list[int], n: int = 4) -> Request:
    return engine.request(prompt, SamplingParams(max_tokens=n, ignore_eos=True))


def sizes(engine: Engine, scheduler: Scheduler) -> list[list[int]]:
    """The parts of every pass until all is done."""
    passes: list[list[int]] = []
    right = scheduler.cache.extend

    def extend(parts: object, read_as: int | None = None) -> object:
        passes.append([part.n for part in parts])  # type: ignore[attr-defined]
        return right(parts, read_as)  # type: ignore[arg-type]

    scheduler.cache.extend = extend  # type: ignore[assignment]
    while not scheduler.idle:
        scheduler.step()
    return passes


def test_a_pass_holds_a_token_of_who_decodes_and_prompts_up_to_its_budget(engine: Engine) -> None:
    scheduler = Scheduler(engine.decoder, ContiguousCache(engine.spec, 32, batch=3), step_tokens=8)
    for prompt in ([1, 2, 3], tiny.CASE_IDS[:12], [4, 5]):
        scheduler.submit(asked(engine, prompt))
    passes = sizes(engine, scheduler)
    # The first prompt whole, the second in what is left, then beside the token of who decodes.
    assert passes[:3] == [[3, 5], [1, 7], [1, 1, 2]]
    assert all(sum(parts) <= 8 for parts in passes)


def test_who_comes_first_is_begun_first_and_nobody_overtakes(engine: Engine) -> None:
    """A short prompt behind a long one would fit into a pass earlier, and waits all the same."""
    scheduler = Scheduler(engine.decoder, ContiguousCache(engine.spec, 32, batch=1), step_tokens=4)
    requests = [asked(engine, prompt) for prompt in (tiny.CASE_IDS[:12], [1], [2])]
    for request in requests:
        scheduler.submit(request)
    finished: list[Request] = []
    while not scheduler.idle:
        finished += [request for request, _ in scheduler.step() if request.done]
    assert finished == requests


@pytest.mark.parametrize("cache", ["contiguous", "ring", "paged"])
def test_a_request_with_a_seed_gives_the_same_alone_among_eight_and_after_others(
    tmp_path: Path, cache: str
) -> None:
    folder = tiny.save_folder(tmp_path, tiny.CASE)
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=7, ignore_eos=True)
    alone = [Engine.load(folder).generate(prompt, params).token_ids for prompt in PROMPTS]
    engine = Engine.load(folder, cache=cache)
    for _ in range(2):
        assert [done.token_ids for done in engine.generate(PROMPTS, params)] == alone


def test_who_comes_last_gives_way_and_is_computed_anew(engine: Engine) -> None:
    cache = PagedCache(engine.spec, 6, 4, poison=True)
    scheduler = Scheduler(engine.decoder, cache)
    requests = [asked(engine, prompt, 10) for prompt in ([1, 2, 3, 4, 5], [6, 7, 8, 9], [3, 1])]
    for request in requests:
        scheduler.submit(request)
    while not scheduler.idle:
        scheduler.step()
    assert scheduler.counters.preempted > 0
    for request in requests:
        params = SamplingParams(max_tokens=10, ignore_eos=True)
        assert request.tokens == [
            *request.prompt,
            *engine.generate(request.prompt, params).token_ids,
        ]
    assert cache.pool.available == 6


def test_one_that_could_not_be_served_alone_is_refused_before_anything_is_computed(
    engine: Engine,
) -> None:
    scheduler = Scheduler(engine.decoder, PagedCache(engine.spec, 2, 4))
    with pytest.raises(RequestError, match="may have 11 tokens, and the KV cache has room for 8"):
        scheduler.submit(asked(engine, [1, 2], 10))
    assert scheduler.idle


def test_logits_that_are_not_finite_end_their_request_alone(engine: Engine) -> None:
    """Its neighbours in the same pass go on."""
    scheduler = Scheduler(engine.decoder, ContiguousCache(engine.spec, 16, batch=2))
    bad, good = asked(engine, [5]), asked(engine, [7])
    for request in (bad, good):
        scheduler.submit(request)
    handle = engine.decoder.logits.register_forward_hook(
        lambda module, args, value: (
            value.index_fill(1, torch.tensor([0]), torch.nan) if value.shape[1] == 2 else None
        )
    )
    try:
        said: list[tuple[Request, Said]] = []
        while not scheduler.idle:
            said += scheduler.step()
    finally:
        handle.remove()
    errors = [request for request, what in said if isinstance(what, LockstepError)]
    assert errors == [bad]
    assert good.done
    assert len(good.pieces) == 4


def test_a_cancelled_request_gives_its_row_back(engine: Engine) -> None:
    cache = ContiguousCache(engine.spec, 16, batch=1)
    scheduler = Scheduler(engine.decoder, cache)
    first, second = asked(engine, [1, 2]), asked(engine, [3])
    scheduler.submit(first)
    scheduler.submit(second)
    scheduler.step()
    scheduler.cancel(first)
    while not scheduler.idle:
        scheduler.step()
    assert (first.done, second.done, cache.rooms) == (False, True, [])


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[1, 2]], [[1]], r"both be \[batch, tokens\]"),
        ([1, 2], [1, 1], r"both be \[batch, tokens\]"),
        ([[1, 50]], [[1, 1]], "token id 50 is unknown"),
        ([[1, 2], [3, 4]], [[1, 1], [0, 0]], "no tokens"),
        ([[1] * 65], [[1] * 65], "context is 64"),
    ],
)
def test_padded_batches_that_make_no_sense_are_refused(
    engine: Engine, ids: list[object], mask: list[object], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        engine.logits_of(torch.tensor(ids), torch.tensor(mask))


def test_more_answers_than_anyone_wants_are_refused() -> None:
    with pytest.raises(RequestError, match="at most 1024"):
        SamplingParams(n=10**9)


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_logprobs_of_a_prompt_are_those_of_the_whole_pass(tmp_path: Path, cache: str) -> None:
    """Also where all of the prompt is in the cache."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE), cache=cache)
    prompt = tiny.CASE_IDS[:20]
    whole = engine.logits(prompt).log_softmax(-1)
    for _ in range(2):
        done = engine.generate(prompt, SamplingParams(max_tokens=2, prompt_logprobs=1))
        assert done.prompt_logprobs is not None
        assert done.prompt_logprobs[0] is None
        for at, entry in enumerate(done.prompt_logprobs[1:], 1):
            assert entry is not None
            assert entry.token_id == prompt[at]
            assert entry.logprob == pytest.approx(float(whole[at - 1, prompt[at]]), abs=1e-5)
    assert len(done.prompt_logprobs) == len(prompt)
