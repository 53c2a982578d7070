"""What a text becomes: its tokens, with all that is known of each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any


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
