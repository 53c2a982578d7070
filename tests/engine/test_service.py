"""One path for all who ask at once: what each gets is what it gets alone, and nothing is left behind.

The cache is paged, with NaN in its free blocks, and too small for all of them together.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import ids
from engine import Engine, SamplingParams
from engine.cache import PagedCache
from engine.errors import LockstepError, RequestError
from engine.generate.answer import Completion, Piece
from engine.generate.scheduler import Counters
from engine.generate.speculation import PromptLookup
from tests.engine import tiny

BLOCKS, BLOCK_SIZE = 8, 4
PROMPTS = [[3, 7, 11, 2, 9], [5], tiny.CASE_IDS[:17], [8, 8, 1], [3, 7, 11, 4], [9, 2], [1] * 9]
ASKED = [
    (prompt, SamplingParams(max_tokens=12, temperature=1.0, seed=i, ignore_eos=True))
    for i, prompt in enumerate(PROMPTS)
]

Said = tuple[str, list[int], list[str | None]]


def said(pieces: Sequence[Piece]) -> Said:
    return (
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.token_ids],
        [piece.finish_reason for piece in pieces],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.text_folder(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    """One whose calls share nothing."""
    return Engine.load(folder)


@pytest.fixture(scope="module")
def alone(plain: Engine) -> list[Said]:
    """What each of the prompts is answered with by itself."""
    answers = [said(list(plain.stream(*asked))) for asked in ASKED]
    assert len({tuple(token_ids) for _, token_ids, _ in answers}) == len(ASKED)
    return answers


@pytest.fixture
def shared(folder: Path) -> Iterator[Engine]:
    """One whose calls share few blocks; in the end all of them are there again, and nobody is known."""
    engine = Engine.load(folder, cache="paged")
    engine.pages = PagedCache(engine.spec, BLOCKS, BLOCK_SIZE, poison=True)
    yield engine
    is_empty(engine)


def is_empty(engine: Engine) -> None:
    service = engine._shared
    assert engine.pages.pool.available == BLOCKS
    assert engine.pages.rooms == []
    assert service.scheduler.idle
    assert not service._mail
    assert not service._door


# -- generators that are read in turns -------------------------------------------------------------


def test_streams_that_are_read_in_turns_say_what_each_says_alone(
    shared: Engine, alone: list[Said]
) -> None:
    """The cache has room for two of them; the others wait, or give way and are computed anew."""
    streams = [shared.stream(*asked) for asked in ASKED]
    rounds = list(zip_longest(*streams))
    assert [
        said([piece for piece in column if piece]) for column in zip(*rounds, strict=True)
    ] == alone
    counters = shared._shared.scheduler.counters
    assert counters.preempted > 0
    assert counters.steps < 0.8 * len(PROMPTS) * 12, "they share passes"


@tiny.examples(30)
@given(data=st.data())
def test_however_streams_are_read_and_given_up_the_others_go_on(
    folder: Path, data: st.DataObject
) -> None:
    """Random reading, closing and dropping, of streams that begin at random moments."""
    engine = _engine(folder)
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=1, n=2, ignore_eos=True)
    prompts = data.draw(st.lists(ids(50, max_size=9), min_size=1, max_size=5))
    streams: dict[int, Any] = {}
    heard: dict[int, list[Piece]] = {}
    for i in data.draw(st.lists(st.integers(0, len(prompts) - 1), max_size=60)):
        if i not in heard:
            streams[i], heard[i] = engine.stream(prompts[i], params), []
        elif i not in streams:
            continue
        match data.draw(st.sampled_from(["read"] * 8 + ["close", "drop"])):
            case "read":
                heard[i] += [piece for piece in [next(streams[i], None)] if piece]
            case "close":
                streams.pop(i).close()
            case "drop":
                del streams[i]
    for i, stream in streams.items():
        heard[i] += stream
    for i, pieces in heard.items():
        want = list(_engine(folder, "ring").stream(prompts[i], params))
        for index in (0, 1):
            whole = said([piece for piece in want if piece.index == index])
            got = said([piece for piece in pieces if piece.index == index])
            assert got[1] == whole[1][: len(got[1])]
            assert i not in streams or got == whole
    del streams
    is_empty(engine)


_MADE: dict[tuple[Path, str], Engine] = {}


def _engine(folder: Path, cache: str = "paged") -> Engine:
    """One for all examples, as it would serve for days."""
    if (folder, cache) not in _MADE:
        engine = _MADE[folder, cache] = Engine.load(folder, cache=cache)
        if cache == "paged":
            engine.pages = PagedCache(engine.spec, BLOCKS, BLOCK_SIZE, poison=True)
    return _MADE[folder, cache]


def test_drafts_come_in_bunches_to_each_of_those_that_share_a_pass(
    folder: Path, alone: list[Said]
) -> None:
    """Several pieces of one step wait in a mailbox; a stream that is closed with some of them leaves none."""
    engine = Engine.load(folder, cache="paged", speculation=PromptLookup(ngram=1))
    engine.pages = PagedCache(engine.spec, BLOCKS, BLOCK_SIZE, poison=True)
    streams = [engine.stream(*asked) for asked in ASKED]
    rounds = list(zip_longest(*streams))
    assert [
        said([piece for piece in column if piece]) for column in zip(*rounds, strict=True)
    ] == alone
    again = [20, 21, 20, 21, 20]
    biased = SamplingParams(max_tokens=20, logit_bias={20: 90.0, 21: 90.0})
    whole = list(engine.stream(again, biased))
    assert engine.counters.accepted > 0
    cut = engine.stream(again, biased)
    assert [next(cut) for _ in range(3)] == whole[:3]
    cut.close()
    is_empty(engine)


def test_a_stream_that_was_never_read_holds_nothing(shared: Engine) -> None:
    stream = shared.stream(*ASKED[0])
    assert shared.generate(*ASKED[1]).token_ids
    is_empty(shared)
    stream.close()


def test_a_stream_collected_in_the_midst_of_a_pass_is_taken_out_after_it(shared: Engine) -> None:
    """By the thread that computes the pass, which must not wait for itself."""
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    first, second = streams
    next(first), next(second)

    def collect(*_: Any) -> None:
        first.close()

    handle = shared.decoder.embed.register_forward_hook(collect)
    try:
        rest = list(second)
    finally:
        handle.remove()
    assert len(rest) == 11
    is_empty(shared)


def test_all_answers_to_one_prompt_and_lists_of_prompts_come_the_same_way(
    shared: Engine, plain: Engine
) -> None:
    several = SamplingParams(max_tokens=5, temperature=1.0, seed=3, n=3, ignore_eos=True)
    best = SamplingParams(max_tokens=5, temperature=1.0, seed=3, best_of=4, n=2, ignore_eos=True)
    background = shared.stream(*ASKED[2])
    next(background)
    for params in (several, best):
        for asked in (PROMPTS[0], PROMPTS[:3]):
            assert_same(shared.generate(asked, params), plain.generate(asked, params))
    assert len(list(background)) == 11


def assert_same(got: Any, want: Any) -> None:
    """Equal but for scores and log-probabilities, which are as close as another batch leaves them."""
    if isinstance(want, list):
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
        return
    assert isinstance(got, Completion)
    assert (got.text, got.token_ids, got.finish_reason) == (
        want.text,
        want.token_ids,
        want.finish_reason,
    )
    assert (got.usage, got.index) == (want.usage, want.index)
    assert got.score == pytest.approx(want.score, abs=1e-5)


# -- coroutines ------------------------------------------------------------------------------------


async def collected(stream: AsyncIterator[Piece]) -> list[Piece]:
    return [piece async for piece in stream]


def test_thirty_two_coroutines_at_once(shared: Engine, alone: list[Said]) -> None:
    async def ask() -> list[Said]:
        streams = [collected(shared.astream(*ASKED[i % len(ASKED)])) for i in range(32)]
        return [said(pieces) for pieces in await asyncio.gather(*streams)]

    for _ in range(2):  # in an event loop of its own each
        assert asyncio.run(ask()) == [alone[i % len(PROMPTS)] for i in range(32)]
    assert shared._shared.scheduler.counters.steps < 0.5 * 2 * 32 * 12, "they share passes"


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_what_is_generated_without_blocking_is_what_is_generated(
    folder: Path, plain: Engine, cache: str
) -> None:
    engine = _engine(folder, cache)
    for params in (
        ASKED[0][1],
        SamplingParams(max_tokens=4, temperature=1.0, seed=2, best_of=3, n=2),
    ):
        for prompt in (PROMPTS[0], PROMPTS[:3], "some text", [], ["one", [2]]):
            assert_same(
                asyncio.run(engine.agenerate(prompt, params)), plain.generate(prompt, params)
            )


def test_the_event_loop_goes_on_while_a_pass_is_computed(shared: Engine) -> None:
    """The pass waits for something that only the event loop can do."""
    went_on = threading.Event()

    async def ask() -> list[Piece]:
        asking = asyncio.create_task(collected(shared.astream(*ASKED[0])))
        while not inside.is_set():
            await asyncio.sleep(0)
        went_on.set()
        return await asking

    inside = threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        assert went_on.wait(60), "the event loop stands still"

    handle = shared.decoder.embed.register_forward_hook(wait)
    try:
        assert len(asyncio.run(ask())) == 12
    finally:
        handle.remove()


@pytest.mark.parametrize("beside", [True, False])
def test_a_task_cancelled_while_its_pass_is_computed_is_taken_out_after_it(
    shared: Engine, alone: list[Said], beside: bool
) -> None:
    """The pass ends, a neighbour keeps what it gave, and the room is free then, without another step."""
    inside, cancelled = threading.Event(), threading.Event()

    async def ask() -> None:
        victim = asyncio.create_task(collected(shared.astream(*ASKED[0])))
        other = asyncio.create_task(collected(shared.astream(*ASKED[1]))) if beside else None
        while not inside.is_set():
            await asyncio.sleep(0)
        victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        assert shared.pages.rooms, "the pass is still being computed"
        cancelled.set()
        assert other is None or said(await other) == alone[1]

    def wait(*_: Any) -> None:
        inside.set()
        assert cancelled.wait(60)

    handle = shared.decoder.embed.register_forward_hook(wait)
    try:
        asyncio.run(ask())  # and waits for the thread that takes the step
    finally:
        handle.remove()


@pytest.mark.parametrize("seed", range(6))
def test_tasks_cancelled_at_random_moments_leave_nothing_and_disturb_nobody(
    shared: Engine, alone: list[Said], seed: int
) -> None:
    rng = random.Random(seed)

    async def ask() -> list[Said | None]:
        tasks = [
            asyncio.create_task(collected(shared.astream(*asked))) for asked in (*ASKED, *ASKED)
        ]
        victims = rng.sample(tasks, 7)
        for victim in victims:
            for _ in range(rng.randrange(60)):
                await asyncio.sleep(0)
            victim.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for task, result in zip(tasks, done, strict=True):
            if isinstance(result, BaseException):
                assert task in victims
                assert isinstance(result, asyncio.CancelledError)
        return [None if isinstance(result, BaseException) else said(result) for result in done]

    heard = asyncio.run(ask())
    assert heard.count(None) > 0
    for got, want in zip(heard, (*alone, *alone), strict=True):
        assert got is None or got == want


def test_an_async_stream_left_in_the_middle_gives_its_room_back(shared: Engine) -> None:
    async def ask() -> None:
        async for _ in shared.astream(*ASKED[0]):
            break
        stream = shared.astream(*ASKED[1])
        await anext(stream)
        await stream.aclose()

    asyncio.run(ask())


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_two_threads_share_an_engine(folder: Path, alone: list[Said], cache: str) -> None:
    engine = _engine(folder, cache)
    results: dict[int, list[Said]] = {}
    start = threading.Barrier(3)

    def ask(which: int) -> None:
        start.wait()
        results[which] = [said(list(engine.stream(*asked))) for asked in ASKED[which::3]]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {i: results[i] for i in range(3)} == {i: alone[i::3] for i in range(3)}
    if cache == "paged":
        is_empty(engine)


def test_threads_count_what_they_do_in_one_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that come at the same time, first of all: from Python 3.12 on a cached property has no lock."""
    made: list[Counters] = []
    start = threading.Barrier(2)

    def slowly() -> Counters:
        time.sleep(0.2)
        made.append(Counters())
        return made[-1]

    def ask() -> None:
        start.wait()
        engine.generate([3], SamplingParams(max_tokens=1))

    engine = Engine.load(folder)
    monkeypatch.setattr("engine.generate.engine.Counters", slowly)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert made == [engine.counters]


def test_threads_and_coroutines_share_an_engine(shared: Engine, alone: list[Said]) -> None:
    heard: list[Said] = []
    thread = threading.Thread(
        target=lambda: heard.extend(said(list(shared.stream(*asked))) for asked in ASKED[:3])
    )

    async def ask() -> list[list[Piece]]:
        thread.start()
        return await asyncio.gather(*(collected(shared.astream(*asked)) for asked in ASKED[3:]))

    rest = asyncio.run(ask())
    thread.join(120)
    assert [*heard, *map(said, rest)] == alone


# -- errors ----------------------------------------------------------------------------------------


def nothing_allowed(engine: Engine) -> SamplingParams:
    bias = dict.fromkeys(range(engine.spec.vocab_size), -math.inf)
    return SamplingParams(max_tokens=4, logit_bias=bias)


def test_an_error_of_one_request_is_its_own_caller_s(shared: Engine, alone: list[Said]) -> None:
    """All tokens are forbidden to it; the neighbours never hear of it."""
    forbidden = nothing_allowed(shared)
    good, bad = shared.stream(*ASKED[0]), shared.stream(PROMPTS[1], forbidden)
    pieces = [next(good)]
    with pytest.raises(RequestError, match="no token is left to choose"):
        next(bad)
    assert next(bad, None) is None
    assert said([*pieces, *good]) == alone[0]


def test_an_error_of_one_coroutine_is_its_own(shared: Engine, alone: list[Said]) -> None:
    forbidden = nothing_allowed(shared)

    async def ask() -> list[Any]:
        good = collected(shared.astream(*ASKED[0]))
        bad = shared.agenerate(PROMPTS[1], forbidden)
        return await asyncio.gather(good, bad, return_exceptions=True)

    good, bad = asyncio.run(ask())
    assert isinstance(bad, RequestError)
    assert said(good) == alone[0]


def test_a_request_that_the_cache_cannot_hold_is_refused_at_the_call(shared: Engine) -> None:
    long = SamplingParams(max_tokens=40)
    with pytest.raises(RequestError, match=r"may have 44 tokens.* room for 32"):
        shared.stream([1] * 5, long)
    with pytest.raises(RequestError, match=r"may have 44 tokens.* room for 32"):
        shared.astream([1] * 5, long)
    with pytest.raises(RequestError, match="best_of above n cannot be streamed"):
        shared.astream([1], SamplingParams(best_of=2))
    assert shared.generate([1], ASKED[0][1]).token_ids


def test_a_pass_that_fails_ends_those_that_took_part_and_the_next_ones_are_served(
    shared: Engine, alone: list[Said]
) -> None:
    """What they had computed is worth nothing; a fault of the machine is no reason to stop serving."""
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    for stream in streams:
        next(stream)

    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    handle = shared.decoder.final_norm.register_forward_hook(fail)
    try:
        with pytest.raises(MemoryError, match="no more"):
            list(streams[0])
    finally:
        handle.remove()
    with pytest.raises(MemoryError, match="no more"):
        list(streams[1])
    is_empty(shared)
    assert said(list(shared.stream(*ASKED[0]))) == alone[0]


def test_an_interrupted_pass_interrupts_its_caller_and_fails_the_others(shared: Engine) -> None:
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    for stream in streams:
        next(stream)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = shared.decoder.final_norm.register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(streams[0])
    finally:
        handle.remove()
    with pytest.raises(LockstepError, match="interrupted"):
        list(streams[1])
