"""Remembers what was worked out for a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WordCache(dict[str, T]):
    """What was worked out for the words seen lately.

    At most `LIMIT` words of `CHARACTERS` together are kept, none over `LONGEST`: text has rulers
    and blank stretches of a hundred characters, and a hostile one should fill no memory.
    """

    LIMIT = 1 << 16
    LONGEST = 1 << 10
    CHARACTERS = 1 << 22

    def __init__(self, work_out: Callable[[str], T]) -> None:
        super().__init__()
        self._work_out = work_out
        self._characters = 0

    def __missing__(self, word: str) -> T:
        result = self._work_out(word)
        if len(word) <= self.LONGEST:
            self._characters += len(word)
            if len(self) >= self.LIMIT or self._characters > self.CHARACTERS:
                self.clear()
                self._characters = len(word)
            self[word] = result
        return result
