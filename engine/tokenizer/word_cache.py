"""Remembers what was worked out for a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WordCache(dict[str, T]):
    """What was worked out for the words seen lately: at most `LIMIT` words, none over `LONGEST`."""

    LIMIT = 1 << 16
    LONGEST = 64

    def __init__(self, work_out: Callable[[str], T]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, word: str) -> T:
        result = self._work_out(word)
        if len(word) <= self.LONGEST:
            if len(self) >= self.LIMIT:
                self.clear()
            self[word] = result
        return result
