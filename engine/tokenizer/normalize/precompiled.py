"""The table of replacements that SentencePiece compiles into its models, as the reference reads it.

Source: SentencePiece's normalizer and the double-array trie it uses (Aoe 1989; darts-clone for the
bits of a unit); the tokenizers library for how the table is applied.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

import regex

from engine.tokenizer.normalize.changes import Change, sources_of
from engine.tokenizer.word_cache import WordCache

_GRAPHEME = regex.compile(r"\X")
# Longer clusters of characters are looked up one character at a time.
_LONGEST_CLUSTER = 5

_BLOCK = 256  # the places that one byte can lead to
_IS_VALUE = 1 << 31


class Precompiled:
    """A Rewrite that replaces clusters of characters by a table.

    A cluster, and where the table has nothing for it each of its characters, becomes what the table
    has for the shortest of its beginnings.
    """

    def __init__(self, charsmap: bytes) -> None:
        """Read the size of the trie in bytes, the trie, and the replacements, each ended by a 0.

        Raises ValueError if they are not that, or point outside themselves.
        """
        size = int.from_bytes(charsmap[:4], "little")
        trie, self._replacements = charsmap[4 : 4 + size], charsmap[4 + size :]
        if len(trie) < size or size < 4 or size % 4:
            raise ValueError(f"the trie of {size} bytes is not there")
        self._replacements.decode()
        units = array("I", trie)
        if sys.byteorder == "big":
            units.byteswap()
        units.extend([0] * (-len(units) % _BLOCK))
        self._check(units)
        self._units = units
        self._of_cluster = WordCache(self._replaced)

    def __call__(self, text: str) -> str:
        return "".join(map(self._of_cluster.__getitem__, _GRAPHEME.findall(text)))

    def sources(self, text: str) -> list[int]:
        return sources_of(self._changes(text))

    # A value may not begin inside a character, which would be no text.
    def _check(self, units: array[int]) -> None:
        """Raise ValueError if a lookup could leave the trie or the replacements."""
        for place, unit in enumerate(units):
            if unit & _IS_VALUE:
                start = unit ^ _IS_VALUE
                first = self._replacements[start : start + 1]
                if start > len(self._replacements) or b"\x80" <= first < b"\xc0":
                    raise ValueError(f"the trie points at byte {start} of the replacements")
            elif place ^ _offset(unit) >= len(units):
                raise ValueError(f"the trie points outside itself at its unit {place}")

    def _replacement(self, text: str) -> str | None:
        """Return what the table has for the shortest beginning of a text, if for any."""
        units = self._units
        place = _offset(units[0])
        for byte in text.encode():
            place ^= byte
            unit = units[place]
            # A byte 0 leads to a value, never onwards.
            if not byte or unit & (_IS_VALUE | 0xFF) != byte:
                return None
            place ^= _offset(unit)
            if unit >> 8 & 1:
                start = units[place] & ~_IS_VALUE
                end = self._replacements.find(b"\x00", start)
                return self._replacements[start : end if end >= 0 else None].decode()
        return None

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
            for old, new in self._parts(cluster):
                new = old if new is None else new
                more = len(new) - len(old)
                kept = len(new) - max(more, 0)
                changes += [(character, int(i >= kept)) for i, character in enumerate(new)]
                if more < 0 and changes:
                    character, change = changes[-1]
                    changes[-1] = character, change + more
        return changes


def _offset(unit: int) -> int:
    """Return how far from a unit its children lie, to be combined by exclusive or."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)
