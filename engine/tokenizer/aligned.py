"""Text that knows which character of the original each of its characters stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, Protocol


@dataclass
class Encoding:
    """Tokens of a text, or of two: a list each, one entry per token.

    `tokens` are spellings, `offsets` the [start, end) characters of the token's own text. A token
    that holds part of a character covers the whole character; one that the post-processor or the
    padding added covers nothing and stands at (0, 0). `type_ids` tell two texts apart;
    `special_tokens_mask` is 1 where the token was added, `attention_mask` 0 where it is padding.
    """

    ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    offsets: list[tuple[int, int]] = field(default_factory=list)
    type_ids: list[int] = field(default_factory=list)
    special_tokens_mask: list[int] = field(default_factory=list)
    attention_mask: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.ids)
        self.type_ids = self.type_ids or [0] * count
        self.special_tokens_mask = self.special_tokens_mask or [0] * count
        self.attention_mask = self.attention_mask or [1] * count

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Encoding:
        """Return some of the tokens in their order."""
        return Encoding(*(values[part] for values in self.columns))

    @property
    def columns(self) -> tuple[list[Any], ...]:
        """The lists, in the order of the fields."""
        return tuple(getattr(self, column.name) for column in fields(self))

    @classmethod
    def joined(cls, parts: Iterable[Encoding]) -> Encoding:
        """Return the tokens of all parts, one part after the other."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(list(chain.from_iterable(lists)) for lists in columns))


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
