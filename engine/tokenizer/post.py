"""What is done to the tokens of whole texts: special tokens around them, offsets trimmed.

Source: the tokenizers library 0.23, whose post-processors these are. Bert's and Roberta's are
templates as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import regex

from engine.tokenizer.alphabet import SPACE
from engine.tokenizer.encoding import Encoding

_LEADING_SPACES = regex.compile(rf"[{SPACE}\s]*")
_TRAILING_SPACES = regex.compile(rf"(?r)[{SPACE}\s]*")


class PostStep(Protocol):
    """One step of the post-processor."""

    def __call__(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        """Return the parts of the result, made of the parts so far: at first one or two texts."""


@dataclass(frozen=True)
class Text:
    """The place of a text in a template: the first (0) or the second (1) of a pair."""

    which: int
    type_id: int = 0


@dataclass(frozen=True)
class Specials:
    """Special tokens in a template: ids and how they are spelled."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    type_id: int = 0


#: A template: texts and special tokens in their order.
Pieces = tuple[Text | Specials, ...]
_TEXT_ALONE: Pieces = (Text(0),)
_TEXTS_ALONE: Pieces = (Text(0), Text(1, type_id=1))


@dataclass(frozen=True)
class Template:
    """Special tokens around a text, and around and between the texts of a pair."""

    single: Pieces = _TEXT_ALONE
    pair: Pieces = _TEXTS_ALONE

    def __call__(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        pieces = self.single if len(encodings) == 1 else self.pair
        return [
            _typed(encodings[piece.which], piece.type_id)
            if isinstance(piece, Text)
            else _special(piece)
            for piece in pieces
            if add_special_tokens or isinstance(piece, Text)
        ]

    def added(self, texts: int) -> int:
        """Return how many special tokens it adds to one text, or to two."""
        pieces = self.single if texts == 1 else self.pair
        return sum(len(piece.ids) for piece in pieces if isinstance(piece, Specials))


def _typed(encoding: Encoding, type_id: int) -> Encoding:
    return replace(encoding, type_ids=[type_id] * len(encoding.ids))


def _special(piece: Specials) -> Encoding:
    count = len(piece.ids)
    return Encoding(
        list(piece.ids),
        list(piece.tokens),
        [(0, 0)] * count,
        type_ids=[piece.type_id] * count,
        special_tokens_mask=[1] * count,
    )


@dataclass(frozen=True)
class TrimOffsets:
    """Leaves the spaces at a token's ends out of its offsets, as the ByteLevel post-processor.

    With `prefix_space` one leading space of the first token counts as put there by the splitter,
    and stays.
    """

    prefix_space: bool

    def __call__(self, encodings: list[Encoding], add_special_tokens: bool) -> list[Encoding]:
        return [self._trimmed(encoding) for encoding in encodings]

    def _trimmed(self, encoding: Encoding) -> Encoding:
        trimmed = [
            self._trim(token, start, end, first=i == 0 or start == 0)
            for i, (token, (start, end)) in enumerate(
                zip(encoding.tokens, encoding.offsets, strict=True)
            )
        ]
        return replace(encoding, offsets=trimmed)

    def _trim(self, token: str, start: int, end: int, first: bool) -> tuple[int, int]:
        leading = len(_LEADING_SPACES.match(token)[0])
        trailing = len(_TRAILING_SPACES.match(token)[0])
        if first and self.prefix_space and leading == 1:
            leading = 0
        start = min(start + leading, end)
        if end >= trailing:
            end = max(end - trailing, start)
        return start, end


@dataclass(frozen=True)
class PostProcessor:
    """The steps in the file's order; at most one of them is a template."""

    steps: Sequence[PostStep] = ()

    def __call__(self, *texts: list[int], add_special_tokens: bool) -> list[int]:
        """Return the ids of a text, or of two, as the template arranges them."""
        template = self._template
        ids: list[int] = []
        for piece in template.single if len(texts) == 1 else template.pair:
            if isinstance(piece, Text):
                ids += texts[piece.which]
            elif add_special_tokens:
                ids += piece.ids
        return ids

    def process(self, encodings: Sequence[Encoding], add_special_tokens: bool) -> Encoding:
        """Return one encoding of a text, or of two, after all steps."""
        parts = [_typed(encoding, i) for i, encoding in enumerate(encodings)]
        for step in self.steps:
            parts = step(parts, add_special_tokens)
        return Encoding.joined(parts)

    def added(self, texts: int) -> int:
        """Return how many special tokens are added to one text, or to two."""
        return self._template.added(texts)

    @property
    def _template(self) -> Template:
        return next((step for step in self.steps if isinstance(step, Template)), _PLAIN)


_PLAIN = Template()
