"""Text that knows which character of the original each of its characters stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

BEFORE_ALL = -1
"""The source of a character that was put before the first one and stands for none."""


class Rewrite(Protocol):
    """A change of characters that leaves the order of the text alone."""

    def __call__(self, text: str) -> str:
        """Return the text rewritten."""

    def sources(self, text: str) -> Sequence[int]:
        """Return, for each character of the rewritten text, the index in `text` it stands for.

        It is BEFORE_ALL for one that was put at the very start and stands for none.
        """


class Aligned:
    """A piece of text with the original index of each character, worked out when asked for."""

    __slots__ = ("_origin", "_where", "text")

    def __init__(
        self,
        text: str,
        where: Sequence[int] | Callable[[], Sequence[int]],
        origin: Callable[[], int] | None = None,
    ) -> None:
        self.text = text
        self._where = where
        self._origin = origin

    @classmethod
    def original(cls, text: str) -> Aligned:
        """Return a text as it is, each character of which stands for itself."""
        return cls(text, range(len(text)))

    @property
    def where(self) -> Sequence[int]:
        """The index in the original text, per character of `text`.

        It is ~i for a character that stands for none and was put before the character i.
        """
        if callable(self._where):
            self._where = self._where()
        return self._where

    @property
    def origin(self) -> int:
        """Where in the original text this piece began before it was rewritten."""
        if self._origin is not None:
            return self._origin()
        return self.span(0, 1)[0] if self.text else 0

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the [start, end) of the original text that some characters, not none, cover."""
        first, last = self.where[start], self.where[end - 1]
        return (first if first >= 0 else ~first), (last + 1 if last >= 0 else ~last)

    def slice(self, start: int, end: int) -> Aligned:
        """Return the characters [start, end) of `text`, which come from where they came from."""
        if callable(self._where):
            return Aligned(self.text[start:end], lambda: self.where[start:end])
        return Aligned(self.text[start:end], self._where[start:end])

    def rewritten(self, rewrite: Rewrite) -> Aligned:
        """Return the text rewritten, which may read as before and yet stand for other places."""

        def where() -> Sequence[int]:
            sources = rewrite.sources(self.text)
            if sources == range(len(self.text)):
                return self.where
            before, here = ~self.origin, self.where
            return [here[i] if i >= 0 else before for i in sources]

        return Aligned(rewrite(self.text), where, lambda: self.origin)


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
