"""The table of replacements that SentencePiece compiles into its models.

`precompiled.py` has the two ways to use it.
Source: SentencePiece's normalizer and the double-array trie it uses (Aoe 1989; darts-clone for the
bits of a unit).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

_BLOCK = 256  # the places that one byte can lead to
_IS_VALUE = 1 << 31


class Charsmap:
    """A table of what texts are replaced by."""

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

    def _check(self, units: array[int]) -> None:
        """Raise ValueError if a lookup could leave the trie or the replacements."""
        for place, unit in enumerate(units):
            if unit & _IS_VALUE:
                start = unit ^ _IS_VALUE
                # A value may not begin inside a character, which would be no text.
                first = self._replacements[start : start + 1]
                if start > len(self._replacements) or b"\x80" <= first < b"\xc0":
                    raise ValueError(f"the trie points at byte {start} of the replacements")
            elif place ^ _offset(unit) >= len(units):
                raise ValueError(f"the trie points outside itself at its unit {place}")

    def beginnings(self, text: bytes, start: int = 0) -> Iterator[tuple[int, str]]:
        """Yield where entries end that a text has from `start` on, and what they are replaced by.

        The shortest comes first. `text` is UTF-8.
        """
        units = self._units
        place = _offset(units[0])
        for end in range(start, len(text)):
            byte = text[end]
            place ^= byte
            unit = units[place]
            # A byte 0 leads to a value, never onwards.
            if not byte or unit & (_IS_VALUE | 0xFF) != byte:
                return
            place ^= _offset(unit)
            if unit >> 8 & 1:
                yield end + 1, self._value(units[place] & ~_IS_VALUE)

    def begins(self, character: str) -> bool:
        """Return whether an entry begins with a character."""
        place = _offset(self._units[0])
        for byte in character.encode():
            place ^= byte
            if not byte or self._units[place] & (_IS_VALUE | 0xFF) != byte:
                return False
            place ^= _offset(self._units[place])
        return True

    def _value(self, start: int) -> str:
        end = self._replacements.find(b"\x00", start)
        return self._replacements[start : end if end >= 0 else None].decode()


def _offset(unit: int) -> int:
    """Return how far from a unit its children lie, to be combined by exclusive or."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)
