"""How a rewrite that is told as a list of changes follows the characters of its text."""

from __future__ import annotations

from collections.abc import Iterable

# A character and how it changes the count of characters: 0 stands for one source character,
# 1 is one more from the same source, -n stands for n sources besides its own.
Change = tuple[str, int]


def sources_of(changes: Iterable[Change]) -> list[int]:
    """Return the source of each character."""
    sources = []
    consumed = 0
    for _, change in changes:
        if change > 0:
            sources.append(consumed - 1)
        else:
            sources.append(consumed)
            consumed += 1 - change
    return sources
