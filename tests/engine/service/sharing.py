"""What the tests of a shared engine ask of it, and how they look at what it says.

Its cache is paged, with NaN in its free blocks, and too small for all of them together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.cache import PagedCache
from engine.generate.answer import Completion, Piece
from engine.generate.speculation import Speculation
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


async def collected(stream: AsyncIterator[Piece]) -> list[Piece]:
    return [piece async for piece in stream]


def is_empty(engine: Engine) -> None:
    service = engine._shared
    assert engine.pages.pool.available == BLOCKS
    assert engine.pages.rooms == []
    assert service.scheduler.idle
    assert not service._mail
    assert not service._door


def cramped(folder: Path, speculation: Speculation | None = None) -> Engine:
    """One whose calls share few blocks."""
    engine = Engine.load(folder, cache="paged", speculation=speculation)
    engine.pages = PagedCache(engine.spec, BLOCKS, BLOCK_SIZE, poison=True)
    return engine


_MADE: dict[tuple[Path, str], Engine] = {}


def engine_of(folder: Path, cache: str = "paged") -> Engine:
    """One for all examples, as it would serve for days."""
    if (folder, cache) not in _MADE:
        _MADE[folder, cache] = (
            cramped(folder) if cache == "paged" else Engine.load(folder, cache=cache)
        )
    return _MADE[folder, cache]


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
