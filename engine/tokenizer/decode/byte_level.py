"""Tokens that spell bytes in GPT-2's alphabet.

Bytes that are no UTF-8 become U+FFFD, one for each maximal part of a character (Unicode 15, section
3.9, table 3-8), and the text of a stream never depends on where the stream was cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from engine.tokenizer.alphabet import bytes_of
from engine.tokenizer.decode.decoder import TextStream


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
