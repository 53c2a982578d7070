"""Text that knows which character of the original each of its characters stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Encoding:
    """Token ids, their spelling, and the [start, end) characters of the text each one covers.

    A token that holds part of a character covers the whole character; a token that the
    post-processor added covers nothing and stands at (0, 0).
    """

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


class Rewrite(Protocol):
    """A change of characters that leaves the order of the text alone."""

    def __call__(self, text: str) -> str:
        """Return the text rewritten."""

    def sources(self, text: str) -> Sequence[int]:
        """Return, for each character of the rewritten text, the index in `text` it stands for."""


class Aligned:
    """A piece of text with the original index of each character, worked out when asked for."""

    __slots__ = ("_where", "text")

    def __init__(self, text: str, where: Sequence[int] | Callable[[], Sequence[int]]) -> None:
        self.text = text
        self._where = where

    @classmethod
    def original(cls, text: str) -> Aligned:
        return cls(text, range(len(text)))

    @property
    def where(self) -> Sequence[int]:
        """The index in the original text, per character of `text`."""
        if callable(self._where):
            self._where = self._where()
        return self._where

    def slice(self, start: int, end: int) -> Aligned:
        if callable(self._where):
            return Aligned(self.text[start:end], lambda: self.where[start:end])
        return Aligned(self.text[start:end], self._where[start:end])

    def rewritten(self, rewrite: Rewrite) -> Aligned:
        text = rewrite(self.text)
        if text == self.text:
            return self
        return Aligned(text, lambda: [self.where[i] for i in rewrite.sources(self.text)])


@dataclass(frozen=True)
class Chain:
    """Rewrites one after the other; the empty chain changes nothing."""

    steps: tuple[Rewrite, ...] = ()

    def __call__(self, text: str) -> str:
        for step in self.steps:
            text = step(text)
        return text

    def sources(self, text: str) -> Sequence[int]:
        piece = Aligned.original(text)
        for step in self.steps:
            piece = piece.rewritten(step)
        return piece.where
