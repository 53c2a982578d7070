"""Writes the table of a Precompiled normalizer, as SentencePiece puts it into its models.

The form: the length of a trie in bytes, the trie as an array of 32-bit units, and the replacements,
each ended by a zero byte; all little-endian, in base64. Source: SentencePiece's normalizer and the
double-array trie that it uses (Aoe 1989; darts-clone for the bits of a unit).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from itertools import count

_HAS_VALUE = 1 << 8
_IS_VALUE = 1 << 31
_BLOCK = 256  # a reader may look at any byte beyond a unit: the array is whole blocks


def charsmap(replacements: Mapping[str, str]) -> str:
    """Return the table that rewrites each key; keys are not empty and hold no zero character."""
    values = b""
    keys: dict[bytes, int] = {}
    for key, value in sorted(replacements.items()):
        keys[key.encode()] = len(values)
        values += value.encode() + b"\x00"
    units = _double_array(keys)
    trie = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + values).decode()


def _double_array(keys: Mapping[bytes, int]) -> list[int]:
    """Return the units of a trie. A node's children lie at its base, each exclusive-or its byte.
    No two nodes share a base: a unit says by which byte it was reached, and not from where.

    A unit holds the byte that led to it, and its own place exclusive-or the base; the child by the
    byte 0 is the value of a key that ends there.
    """
    children: dict[bytes, set[int]] = {b"": set()}
    for key in keys:
        for end in range(len(key)):
            children.setdefault(key[:end], set()).add(key[end])
        children.setdefault(key, set()).add(0)
    units = {0: 0}
    places = {b"": 0}
    bases = set[int]()
    for node in sorted(children, key=lambda node: (len(node), node)):
        wanted = children[node]
        free = (b for b in count(1) if b not in bases)
        base = next(b for b in free if all(b ^ byte not in units for byte in wanted))
        bases.add(base)
        place = places[node]
        units[place] |= (place ^ base) << 10 | (_HAS_VALUE if 0 in wanted else 0)
        for byte in wanted:
            places[node + bytes([byte])] = base ^ byte
            units[base ^ byte] = byte or _IS_VALUE | keys[node]
    size = -(-(max(units) + 1) // _BLOCK) * _BLOCK
    return [units.get(place, 0) for place in range(size)]
