"""Threads that share an engine, with coroutines beside them."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from engine import Engine, SamplingParams
from engine.generate.answer import Piece
from engine.generate.scheduler import Counters
from tests.engine.service.sharing import (
    ASKED,
    Said,
    collected,
    engine_of,
    is_empty,
    said,
)


@pytest.mark.parametrize("cache", ["ring", "paged"])
def test_two_threads_share_anengine_of(folder: Path, alone: list[Said], cache: str) -> None:
    engine = engine_of(folder, cache)
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


def test_threads_and_coroutines_share_anengine_of(shared: Engine, alone: list[Said]) -> None:
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
