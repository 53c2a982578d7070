"""Cuts and pads encodings to a length, as the blocks `truncation` and `padding` of a file say.

Nothing here happens unless a caller asks: a prompt that is cut in silence is a wrong prompt.
Source: the tokenizers library 0.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError
from engine.tokenizer.encoding import Encoding

Direction = Literal["Left", "Right"]
Strategy = Literal["LongestFirst", "OnlyFirst", "OnlySecond"]


@dataclass(frozen=True)
class Truncation:
    """At most `max_length` tokens, special ones included; `direction` is the end that is cut."""

    max_length: int
    strategy: Strategy = "LongestFirst"
    direction: Direction = "Right"

    def __call__(self, encodings: Sequence[Encoding], added: int) -> list[Encoding]:
        """Return one text's encoding, or a pair's, with room left for `added` special tokens.

        Raises RequestError where the text that is to be cut is too short for that.
        """
        room = self.max_length - added
        if room < 0:
            raise RequestError(
                f"no text fits into {self.max_length} tokens, of which {added} are special ones; "
                "ask for a larger max_length"
            )
        sizes = [len(encoding) for encoding in encodings]
        if sum(sizes) <= room:
            return list(encodings)
        return [
            self._cut(encoding, size)
            for encoding, size in zip(encodings, self._sizes(sizes, room), strict=True)
        ]

    def _sizes(self, sizes: list[int], room: int) -> list[int]:
        """Return how many tokens each text keeps."""
        if room == 0:
            return [0] * len(sizes)
        if self.strategy == "LongestFirst":
            return _level(sizes, room) if len(sizes) == 2 else [room]
        cut = 0 if self.strategy == "OnlyFirst" else 1
        if cut >= len(sizes):
            raise RequestError("the second text of a pair is to be cut, and there is only one")
        rest = room - (sum(sizes) - sizes[cut])
        if rest <= 0:
            raise RequestError(
                f"text {cut + 1} has {sizes[cut]} tokens, too few to cut the pair to {room}"
            )
        return [rest if i == cut else size for i, size in enumerate(sizes)]

    def _cut(self, encoding: Encoding, size: int) -> Encoding:
        if self.direction == "Right":
            return encoding[:size]
        return encoding[max(len(encoding) - size, 0) :]


def _level(sizes: list[int], room: int) -> list[int]:
    """Return two sizes that fill `room`: the shorter text is cut only where both exceed a half."""
    short, long = sorted(sizes)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return [short, long] if sizes[0] <= sizes[1] else [long, short]


@dataclass(frozen=True)
class Padding:
    """Fills up to `length`, or to the longest of a batch; then to a multiple of `multiple_of`."""

    pad_id: int
    pad_token: str
    length: int | None = None
    multiple_of: int | None = None
    direction: Direction = "Right"
    pad_type_id: int = 0

    def __call__(self, encodings: Sequence[Encoding]) -> list[Encoding]:
        """Return a batch of one length; an encoding that is longer stays as it is."""
        size = max(map(len, encodings), default=0) if self.length is None else self.length
        if self.multiple_of:
            size += -size % self.multiple_of
        return [self._padded(encoding, size) for encoding in encodings]

    def _padded(self, encoding: Encoding, size: int) -> Encoding:
        missing = max(size - len(encoding), 0)
        pad = Encoding(
            [self.pad_id] * missing,
            [self.pad_token] * missing,
            [(0, 0)] * missing,
            type_ids=[self.pad_type_id] * missing,
            special_tokens_mask=[1] * missing,
            attention_mask=[0] * missing,
        )
        return Encoding.joined([encoding, pad] if self.direction == "Right" else [pad, encoding])
