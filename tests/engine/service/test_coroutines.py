"""Coroutines that share an engine: the event loop goes on, and who is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.generate.answer import Piece
from tests.engine.service.sharing import (
    ASKED,
    PROMPTS,
    Said,
    assert_same,
    collected,
    engine_of,
    said,
)


def test_thirty_two_coroutines_at_once(shared: Engine, alone: list[Said]) -> None:
    async def ask() -> list[Said]:
        streams = [collected(shared.astream(*ASKED[i % len(ASKED)])) for i in range(32)]
        return [said(pieces) for pieces in await asyncio.gather(*streams)]

    for _ in range(2):  # in an event loop of its own each
        assert asyncio.run(ask()) == [alone[i % len(PROMPTS)] for i in range(32)]
    assert shared._shared.scheduler.counters.steps < 0.5 * 2 * 32 * 12, "they share passes"


def test_event_loops_of_two_threads_at_once(shared: Engine, alone: list[Said]) -> None:
    """Each waits for its own step, and for no future of the other."""
    heard: dict[int, list[Said]] = {}

    def ask(i: int) -> None:
        async def together() -> list[Said]:
            streams = [collected(shared.astream(*asked)) for asked in ASKED]
            return [said(pieces) for pieces in await asyncio.gather(*streams)]

        heard[i] = asyncio.run(together())

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {0: alone, 1: alone}


def test_a_token_is_heard_before_the_step_after_the_next(folder: Path) -> None:
    """Though many others wait for their prompts to be read, each of whom could have a step taken first.

    From its first token on a request has one in every step. The step after the one that brought it may
    have begun when a coroutine hears of it.
    """
    engine = Engine.load(folder, cache="paged", cache_tokens=2048)
    engine.step_tokens = 32
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    late: list[int] = []

    async def ask(i: int) -> None:
        steps = [engine.counters.steps async for _ in engine.astream([5 + i] * 8, params)]
        late.extend(step - steps[0] - n for n, step in enumerate(steps))

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, range(32)))

    asyncio.run(ask_all())
    assert len(late) == 32 * 24
    assert {abs(steps) for steps in late} <= {0, 1}


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_what_is_generated_without_blocking_is_what_is_generated(
    folder: Path, plain: Engine, cache: str
) -> None:
    engine = engine_of(folder, cache)
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
        assert went_on.wait(20), "the event loop stands still"

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
        assert cancelled.wait(20)

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
