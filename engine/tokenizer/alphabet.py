"""The byte alphabet of GPT-2: every byte is spelled as one printable character.

Vocabularies of byte-level BPE are written in these characters (a space is "Ġ", a newline "Ċ").
Source: Radford et al. 2019, the encoder published with GPT-2.
"""

from __future__ import annotations

import codecs
from functools import lru_cache


def _alphabet() -> str:
    """Return the 256 characters in byte order; those without a printable Latin-1 glyph move up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(moved)) for byte in range(256))


CHARACTERS = _alphabet()
SPACE = CHARACTERS[0x20]
# The codecs of Python's own character maps read and write the alphabet.
_BYTES = codecs.charmap_build(CHARACTERS)


class SpellBytes:
    """A Rewrite that spells the UTF-8 bytes of a text in the byte alphabet."""

    def __call__(self, text: str) -> str:
        return codecs.charmap_decode(text.encode(), "strict", CHARACTERS)[0]

    def sources(self, text: str) -> list[int]:
        return [i for i, character in enumerate(text) for _ in character.encode()]


@lru_cache(maxsize=1 << 16)
def bytes_of(token: str) -> bytes:
    """Return the bytes a token spells, or its own UTF-8 where it leaves the alphabet.

    The second rule is for added tokens, which are written as plain text; it applies to the whole
    token, so "<|a b|>" (a space is not in the alphabet) keeps all of its characters.
    """
    try:
        return codecs.charmap_encode(token, "strict", _BYTES)[0]
    except UnicodeEncodeError:
        return token.encode()
