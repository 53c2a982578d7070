"""Cuts after every so many characters."""

from __future__ import annotations

from engine.tokenizer.split.step import Cut, Span


class FixedLength(Cut):
    """Cuts a text into pieces of `length` characters; the last one is shorter."""

    def __init__(self, length: int) -> None:
        self._length = length

    def spans(self, text: str) -> list[Span]:
        size = len(text)
        return [(i, min(i + self._length, size)) for i in range(0, size, self._length)]
