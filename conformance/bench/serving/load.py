"""Requests drawn, and sent when they are due."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.bench.scenarios import cut
from conformance.bench.serving.client import Asked, ask

#: Seconds that requests may take that are still running when no more come; then their clients leave.
PATIENCE = 8.0
_SAMPLE = 0.25  # seconds between looks at the server's memory


@dataclass(frozen=True)
class Load:
    """What is asked: for `seconds` at each of `rates` (requests a second), prompts and answers of so many tokens.

    How long each is, and when it is due, is drawn with a seed: the same in every run.
    """

    rates: tuple[float, ...] = (0.5, 1.0, 1.5)
    seconds: float = 30.0
    prompt: tuple[int, int] = (16, 128)
    answer: tuple[int, int] = (16, 64)


USUAL = Load()
#: To try the command out.
QUICK = Load(rates=(2.0, 8.0), seconds=2.0, prompt=(4, 16), answer=(4, 8))


@dataclass
class Step:
    """What came of one rate: the requests, and the server's memory (seconds since the start, bytes)."""

    rate: float
    seconds: float
    asked: list[Asked]
    memory: list[tuple[float, int]] = field(default_factory=list)


def drawn(load: Load, rate: float, ids: Sequence[int]) -> list[tuple[float, dict[str, Any]]]:
    """Requests and the seconds after which they are due: as many as the rate says, at random moments."""
    rng = random.Random(f"{rate}")  # noqa: S311 - the same in every run
    n = max(1, round(rate * load.seconds))
    due = sorted(rng.uniform(0, load.seconds) for _ in range(n))
    return [
        (
            at,
            {
                "prompt": cut(ids, rng.randint(*load.prompt), rng.randrange(len(ids))),
                "max_tokens": rng.randint(*load.answer),
                "temperature": 0,
                "ignore_eos": True,
            },
        )
        for at in due
    ]


async def play(
    port: int,
    model: str,
    requests: Sequence[tuple[float, dict[str, Any]]],
    step: Step,
    memory: Callable[[], int],
) -> Step:
    """Sends each request when it is due, and waits for the answers to the last for a while."""
    start = time.perf_counter()
    sampling = asyncio.create_task(_sample(memory, start, step))
    tasks = [
        asyncio.create_task(_send(port, {"model": model, **document}, start + due, step))
        for due, document in requests
    ]
    wait = start + step.seconds + PATIENCE - time.perf_counter()
    _, late = await asyncio.wait(tasks, timeout=wait)
    for task in (*late, sampling):
        task.cancel()
    await asyncio.gather(*late, sampling, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()  # a fault of this program is no figure
    return step


async def _send(port: int, document: dict[str, Any], due: float, step: Step) -> None:
    asked = Asked(due)
    await asyncio.sleep(due - time.perf_counter())
    step.asked.append(asked)
    await ask(port, document, asked)


async def _sample(memory: Callable[[], int], start: float, step: Step) -> None:
    while True:
        step.memory.append((time.perf_counter() - start, memory()))
        await asyncio.sleep(_SAMPLE)
