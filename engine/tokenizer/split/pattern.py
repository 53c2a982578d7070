"""Cuts at the matches of a pattern.

The patterns are those of the tokenizer's file, run by the `regex` package. Its Unicode tables can
be younger than the reference's: a character assigned since Unicode 16 may be classed differently.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import regex

from engine.tokenizer.patterns.matches import find_spans
from engine.tokenizer.patterns.oniguruma import FLAGS
from engine.tokenizer.patterns.twin import twin_of
from engine.tokenizer.split.step import Cut, Span

# GPT-2's words: Radford et al. 2019, the encoder published with GPT-2.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# A stretch of text and whether the pattern matched it.
Stretch = tuple[int, int, bool]


def _isolated(stretches: list[Stretch]) -> list[Span]:
    return [(start, end) for start, end, _ in stretches]


def _removed(stretches: list[Stretch]) -> list[Span]:
    return [(start, end) for start, end, matched in stretches if not matched]


def _contiguous(stretches: list[Stretch]) -> list[Span]:
    spans: list[Span] = []
    before: bool | None = None
    for start, end, matched in stretches:
        if matched == before:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
        before = matched
    return spans


def _merged_with_previous(stretches: list[Stretch]) -> list[Span]:
    spans: list[Span] = []
    before = False
    for start, end, matched in stretches:
        if matched and not before and spans:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
        before = matched
    return spans


def _merged_with_next(stretches: list[Stretch]) -> list[Span]:
    spans: list[Span] = []
    before = False
    for start, end, matched in reversed(stretches):
        if matched and not before and spans:
            spans[-1] = (start, spans[-1][1])
        else:
            spans.append((start, end))
        before = matched
    return spans[::-1]


def _cut_like(pieces: list[str], text: str) -> list[str]:
    """Return a text cut like another one, which differs in characters beyond ASCII alone."""
    return [
        piece if piece.isascii() else text[end - len(piece) : end]
        for piece, end in zip(pieces, accumulate(map(len, pieces)), strict=True)
    ]


BEHAVIORS: dict[str, Callable[[list[Stretch]], list[Span]]] = {
    "Isolated": _isolated,
    "Removed": _removed,
    "Contiguous": _contiguous,
    "MergedWithPrevious": _merged_with_previous,
    "MergedWithNext": _merged_with_next,
}


class Split(Cut):
    """Cuts at the matches of a pattern; `behavior` says what becomes of the matches."""

    def __init__(self, pattern: str, behavior: str = "Isolated", invert: bool = False) -> None:
        self._pattern = regex.compile(pattern, FLAGS)
        self._spans = BEHAVIORS[behavior]
        self._invert = invert
        # What `findall` gives is the answer only if the matches themselves are all that is kept.
        plain = not self._pattern.groups
        self._matches_are_pieces = behavior == "Isolated" and plain
        self._twin = twin_of(pattern) if self._matches_are_pieces else None
        self._matches_are_kept = behavior == "Removed" and invert and plain

    @property
    def pattern(self) -> str:
        """What it cuts at, as a regular expression."""
        return str(self._pattern.pattern)

    def spans(self, text: str) -> list[Span]:
        return [(start, end) for start, end in self._spans(self._stretches(text)) if start < end]

    def pieces(self, text: str) -> list[str]:
        if self._matches_are_pieces:
            pattern, cast = (self._twin and self._twin.cast(text)) or (self._pattern, text)
            found: list[str] = pattern.findall(cast)
            if sum(map(len, found)) == len(text) and all(found):
                return found if cast is text else _cut_like(found, text)
        elif self._matches_are_kept:
            found = self._pattern.findall(text)
            if all(found):
                return found
        return [text[start:end] for start, end in self.spans(text)]

    def _stretches(self, text: str) -> list[Stretch]:
        stretches: list[Stretch] = []
        done = 0
        for start, end in find_spans(self._pattern, text):
            if done < start:
                stretches.append((done, start, self._invert))
            stretches.append((start, end, not self._invert))
            done = end
        if done < len(text):
            stretches.append((done, len(text), self._invert))
        return stretches
