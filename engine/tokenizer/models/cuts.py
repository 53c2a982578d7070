"""Cuts a long word where no token can reach across, so that its pieces can be merged alone.

Where no token of the vocabulary holds two characters side by side, no merge joins them either. A
cut stands before a character that is a token: one that is not may yet become one token with the
unknown character before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

SPACE = "\u2581"


class Cuts:
    """The places between two characters that are never side by side in a token."""

    def __init__(self, vocab: Mapping[str, int]) -> None:
        self._vocab = vocab

    def at_spaces(self, word: str) -> list[str]:
        """Return a word cut before spaces (U+2581) alone, which is quick."""
        return self._spaces.findall(word)

    def everywhere(self, word: str) -> list[str]:
        """Return a word cut wherever it can be."""
        joined, vocab = self._joined, self._vocab
        places = [
            i for i, pair in enumerate(pairwise(word), 1) if pair not in joined and pair[1] in vocab
        ]
        return [word[start:end] for start, end in pairwise([0, *places, len(word)])]

    @cached_property
    def _tokens(self) -> str:
        """Return all tokens; NUL parts them, and that it also joins them only forbids a cut."""
        return "\0".join(self._vocab)

    @cached_property
    def _joined(self) -> set[tuple[str, str]]:
        return set(pairwise(self._tokens))

    @cached_property
    def _spaces(self) -> re.Pattern[str]:
        """Return what matches a piece: spaces, then what stands before the next cut."""
        if SPACE not in self._vocab:
            return re.compile("(?s:.+)")
        before = {found[0] for found in re.findall(f"[^{SPACE}\0]{SPACE}", self._tokens)}
        if not before:
            return re.compile(f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+")
        joining = re.escape("".join(sorted(before)))
        return re.compile(f"{SPACE}*(?:[^{SPACE}{joining}]+|[{joining}]{SPACE}*)+|{SPACE}+")
