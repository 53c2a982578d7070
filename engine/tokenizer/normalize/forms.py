"""Unicode normal forms, with the source of every character.

The text comes from `unicodedata`. Where a character of the result comes from follows the
tokenizers library: a composed character stands for the first of its parts, a mark that was moved
stands for the place it moved to. Source: Unicode Standard Annex 15; the reference has the forms of
Unicode 9, and a character whose form is younger stays as it is, and apart from its neighbours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import regex

from engine.tokenizer.normalize.changes import Change, sources_of
from engine.tokenizer.unicode_tables import FORMLESS

_FORMLESS = re.compile(f"([{''.join(sorted(FORMLESS))}])")

# Marks so many that they are put in order here: `unicodedata` moves each past all before it.
_LONG_RUN = regex.compile(r"\p{M}{64}")

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]


@dataclass(frozen=True)
class UnicodeForm:
    """A Rewrite into one of the four normal forms."""

    form: Form

    def __call__(self, text: str) -> str:
        if text.isascii():
            return text
        if FORMLESS.isdisjoint(text):  # ten times as fast as a search
            return self._normalized(text)
        return "".join(self._normalized(part) if formed else part for formed, part in _parts(text))

    def sources(self, text: str) -> Sequence[int]:
        if (
            FORMLESS.isdisjoint(text)
            and not _LONG_RUN.search(text)
            and unicodedata.is_normalized(self.form, text)
        ):
            return range(len(text))
        changes: list[Change] = []
        for formed, part in _parts(text):
            changes += self._changes(part) if formed else [(part, 0)]
        return sources_of(changes)

    def _normalized(self, text: str) -> str:
        if _LONG_RUN.search(text):
            text = "".join(part for part, _ in self._decomposed(text))
        return unicodedata.normalize(self.form, text)

    def _changes(self, text: str) -> Iterable[Change]:
        changes = self._decomposed(text)
        return _compose(changes) if self.form.endswith("C") else changes

    def _decomposed(self, text: str) -> Iterator[Change]:
        return _decompose(text, "NFKD" if "K" in self.form else "NFD")


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the characters without a form, and the text between them, as (has a form, text)."""
    for i, part in enumerate(_FORMLESS.split(text)):
        yield i % 2 == 0, part


def _decompose(text: str, form: Literal["NFD", "NFKD"]) -> Iterator[Change]:
    """Yield the characters of a decomposed form, each run of marks in canonical order."""
    marks: list[Change] = []
    for character in text:
        for i, part in enumerate(unicodedata.normalize(form, character)):
            change = (part, min(i, 1))
            if unicodedata.combining(part):
                marks.append(change)
                continue
            yield from _in_order(marks)
            marks.clear()
            yield change
    yield from _in_order(marks)


def _in_order(marks: list[Change]) -> list[Change]:
    return sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))


def _compose(changes: Iterable[Change]) -> Iterator[Change]:
    """Compose each starter with the marks that are not blocked (Annex 15, definition D117)."""
    starter: Change | None = None
    blocked: list[Change] = []
    for character, change in changes:
        order = unicodedata.combining(character)
        if starter is None:
            if order:
                yield character, change
            else:
                starter = character, change
            continue
        free = not blocked or unicodedata.combining(blocked[-1][0]) < order
        pair = unicodedata.normalize("NFC", starter[0] + character) if free else ""
        if len(pair) == 1:
            starter = pair, starter[1] + change - 1
        elif order:
            blocked.append((character, change))
        else:
            yield starter
            yield from blocked
            blocked.clear()
            starter = character, change
    if starter is not None:
        yield starter
    yield from blocked
