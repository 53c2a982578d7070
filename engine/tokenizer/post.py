"""What is done to the ids of a whole text: special tokens around them, offsets trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import regex

from engine.tokenizer.aligned import Encoding
from engine.tokenizer.alphabet import SPACE

_LEADING_SPACES = regex.compile(rf"[{SPACE}\s]*")
_TRAILING_SPACES = regex.compile(rf"(?r)[{SPACE}\s]*")


class PostStep(Protocol):
    """One step of the post-processor."""

    def __call__(self, encoding: Encoding) -> Encoding:
        """Return the encoding changed."""


@dataclass(frozen=True)
class Template:
    """Special tokens, as (id, spelling), before and after the text's own."""

    before: tuple[tuple[int, str], ...] = ()
    after: tuple[tuple[int, str], ...] = ()

    def __call__(self, encoding: Encoding) -> Encoding:
        return Encoding(
            [*(i for i, _ in self.before), *encoding.ids, *(i for i, _ in self.after)],
            [*(t for _, t in self.before), *encoding.tokens, *(t for _, t in self.after)],
            [*[(0, 0)] * len(self.before), *encoding.offsets, *[(0, 0)] * len(self.after)],
        )


@dataclass(frozen=True)
class TrimOffsets:
    """Leaves the spaces at a token's ends out of its offsets, as the ByteLevel post-processor.

    With `prefix_space` one leading space of the first token counts as put there by the splitter,
    and stays.
    """

    prefix_space: bool

    def __call__(self, encoding: Encoding) -> Encoding:
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


class PostProcessor:
    """The steps in the file's order."""

    def __init__(self, steps: Sequence[PostStep] = ()) -> None:
        self._steps = steps

    def __call__(self, ids: list[int]) -> list[int]:
        """Return the ids with the special tokens of the templates."""
        return self.process(Encoding(ids, [""] * len(ids), [(0, 0)] * len(ids))).ids

    def process(self, encoding: Encoding, add_special_tokens: bool = True) -> Encoding:
        """Return the encoding after all steps, or after all but the templates."""
        for step in self._steps:
            if add_special_tokens or not isinstance(step, Template):
                encoding = step(encoding)
        return encoding
