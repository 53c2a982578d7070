"""Replaces by the table that SentencePiece compiles into its models, in two ways.

`Precompiled` is the reference's, for a tokenizer.json; `LongestReplaced` is SentencePiece's own,
for its .model files.
Source: the tokenizers library 0.23 and SentencePiece's normalizer as definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import regex

from engine.tokenizer.normalize.changes import Change, sources_of
from engine.tokenizer.normalize.charsmap import Charsmap
from engine.tokenizer.word_cache import WordCache

_GRAPHEME = regex.compile(r"\X")
# Longer clusters of characters are looked up one character at a time.
_LONGEST_CLUSTER = 5


class Precompiled:
    """A Rewrite that replaces clusters of characters by a table.

    A cluster, and where the table has nothing for it each of its characters, becomes what the table
    has for the shortest of its beginnings.
    """

    def __init__(self, charsmap: Charsmap) -> None:
        self._charsmap = charsmap
        self._of_cluster = WordCache(self._replaced)
        self._parts_of_cluster = WordCache(lambda cluster: tuple(self._parts(cluster)))

    def __call__(self, text: str) -> str:
        return "".join(map(self._of_cluster.__getitem__, _GRAPHEME.findall(text)))

    def sources(self, text: str) -> list[int]:
        return sources_of(self._changes(text))

    def _replacement(self, text: str) -> str | None:
        """Return what the table has for the shortest beginning of a text, if for any."""
        return next((new for _, new in self._charsmap.beginnings(text.encode())), None)

    def _parts(self, cluster: str) -> Iterator[tuple[str, str | None]]:
        """Yield what is looked up in a cluster, and what the table has for it."""
        if len(cluster.encode()) <= _LONGEST_CLUSTER:
            replacement = self._replacement(cluster)
            if replacement is not None:
                yield cluster, replacement
                return
        for character in cluster:
            yield character, self._replacement(character)

    def _replaced(self, cluster: str) -> str:
        return "".join(old if new is None else new for old, new in self._parts(cluster))

    def _changes(self, text: str) -> list[Change]:
        """Return the changes as the reference counts them.

        What is removed counts for the character before it, and at the start of a text for none.
        """
        changes: list[Change] = []
        for cluster in _GRAPHEME.findall(text):
            for old, new in self._parts_of_cluster[cluster]:
                if new is None:
                    changes.append((old, 0))
                    continue
                more = len(new) - len(old)
                kept = len(new) - max(more, 0)
                changes += [(character, int(i >= kept)) for i, character in enumerate(new)]
                if more < 0 and changes:
                    character, change = changes[-1]
                    changes[-1] = character, change + more
        return changes


class LongestReplaced:
    """A Rewrite of the longest entry of a table at each place in turn, as in SentencePiece.

    The texts in `kept` are left as they are, the longest at a place first.
    """

    def __init__(self, charsmap: Charsmap, kept: Iterable[str]) -> None:
        self._charsmap = charsmap
        self._kept: dict[str, list[str]] = {}
        for text in sorted(kept, key=len, reverse=True):
            self._kept.setdefault(text[0], []).append(text)
        self._is_changed = WordCache(lambda c: c in self._kept or charsmap.begins(c))

    def __call__(self, text: str) -> str:
        return "".join([new for _, new in self._parts(text)])

    def sources(self, text: str) -> list[int]:
        """Return for each character of the result the first of those it stands for."""
        sources: list[int] = []
        start = 0
        for old, new in self._parts(text):
            sources += range(start, start + len(old)) if old == new else [start] * len(new)
            start += len(old)
        return sources

    def _parts(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield what stands at each place, and what becomes of it."""
        encoded = text.encode()
        start = at = 0  # the same place in characters and in bytes
        while start < len(text):
            character = text[start]
            old = new = character
            if self._is_changed[character]:
                old, new = self._part(text, start, encoded, at)
            yield old, new
            start += len(old)
            at += len(old.encode())

    def _part(self, text: str, start: int, encoded: bytes, at: int) -> tuple[str, str]:
        for kept in self._kept.get(text[start], ()):
            if text.startswith(kept, start):
                return kept, kept
        found = list(self._charsmap.beginnings(encoded, at))
        if not found:
            return text[start], text[start]
        end, new = found[-1]
        return encoded[at:end].decode(), new
