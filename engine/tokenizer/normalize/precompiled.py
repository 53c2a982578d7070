"""The table of replacements that SentencePiece compiles into its models, as the reference uses it.

Source: the tokenizers library 0.23 as a definition; `charsmap.py` has SentencePiece's own way.
"""

from __future__ import annotations

from collections.abc import Iterator

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
