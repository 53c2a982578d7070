"""Turns tokens back into text: the decoder of the tokenizer's file.

A decoder reads token spellings, whole or one at a time. Bytes that are no UTF-8 become U+FFFD, one
for each maximal part of a character (Unicode 15, section 3.9, table 3-8), and the text of a
stream never depends on where the stream was cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from engine.tokenizer.alphabet import bytes_of


class TextStream(Protocol):
    """Text that comes out while tokens go in."""

    def push(self, token: str) -> str:
        """Return the text that this token completes."""

    def flush(self) -> str:
        """Return what is left when no token follows; the stream is then as new."""


class Decoder(Protocol):
    """Tokens to text."""

    def __call__(self, tokens: Iterable[str]) -> str:
        """Return the text of the whole sequence."""

    def stream(self) -> TextStream:
        """Return a stream whose texts add up to what the whole sequence gives."""


class ByteLevelDecoder:
    """Tokens spelled in the byte alphabet."""

    def __call__(self, tokens: Iterable[str]) -> str:
        return b"".join(map(bytes_of, tokens)).decode("utf-8", errors="replace")

    def stream(self) -> TextStream:
        return _ByteLevelStream()


class _ByteLevelStream:
    """Holds back the bytes of an unfinished character, three at most."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: str) -> str:
        return self._decoder.decode(bytes_of(token))

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
