"""Tokens such as "<0xE2>" that stand for one byte.

The bytes of neighbouring tokens are one text if all of them together are UTF-8. If not, each of
them is a U+FFFD of its own, also those that would be characters: whether a character of such a run
stands is only known when the run ends. A stream shows a character as soon as it is whole, and can
take none back: in a run that turns out not to be UTF-8, the characters before the first bad byte
stay, and every other byte is a U+FFFD. Nothing else differs between a stream and the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from engine.tokenizer.decode.decoder import Flow, Piece
from engine.tokenizer.decode.utf8 import REPLACEMENT, unfinished

# The sign is an oddity of the reference, whose parser of numbers allows one.
_BYTE = re.compile("<0x([0-9A-Fa-f+][0-9A-Fa-f])>")
_BEGINNING_OF_BYTE = re.compile("(?:<(?:0(?:x(?:[0-9A-Fa-f+](?:[0-9A-Fa-f]>?)?)?)?)?)?")


def byte_of(token: str) -> bytes:
    """Return the byte that a token stands for, no byte if it is a text."""
    found = _BYTE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else b""


class ByteFallback:
    """Makes texts of byte tokens and leaves all others as they are."""

    def __call__(self, tokens: list[str]) -> list[str]:
        out: list[str] = []
        for is_bytes, run in groupby(tokens, lambda token: _BYTE.fullmatch(token) is not None):
            if is_bytes:
                out += texts_of(b"".join(map(byte_of, run)))
            else:
                out += run
        return out

    def flow(self) -> Flow:
        return _ByteFallbackFlow()


def texts_of(run: bytes) -> list[str]:
    """Return what becomes of the bytes of neighbouring tokens."""
    try:
        return [run.decode()]
    except UnicodeDecodeError:
        return [REPLACEMENT] * len(run)


class _ByteFallbackFlow:
    """Holds back the bytes of an unfinished character."""

    def __init__(self) -> None:
        self._begun = ""  # an unfinished token that may become a byte
        self._is_text = False  # whether the unfinished token is known to be a text
        self._reset_run()

    def _reset_run(self) -> None:
        self._held = b""  # an unfinished character at the end of the run
        self._has_text = False  # whether characters of the run are out, in a token not yet ended
        self._is_bad = False  # whether the run is known not to be UTF-8

    def push(self, text: str, ends: bool) -> Iterator[Piece]:
        if not self._is_text:
            token = self._begun + text
            if ends and (byte := byte_of(token)):
                self._begun = ""
                yield from self._add(byte)
                return
            if not ends and _BEGINNING_OF_BYTE.fullmatch(token):
                self._begun = token
                return
            self._begun, text = "", token
            yield from self._end_run()
        self._is_text = not ends
        yield text, ends

    def finish(self) -> Iterator[Piece]:
        return self._end_run()

    def _add(self, byte: bytes) -> Iterator[Piece]:
        if self._is_bad:
            yield REPLACEMENT, True
            return
        data = self._held + byte
        if unfinished(data) == len(data):
            self._held = data
            yield "", False
            return
        try:
            character = data.decode()
        except UnicodeDecodeError:
            yield from self._replaced(data)
            self._held, self._is_bad = b"", True
        else:
            self._held, self._has_text = b"", True
            yield character, False

    def _end_run(self) -> Iterator[Piece]:
        if self._held:
            yield from self._replaced(self._held)
        elif self._has_text and not self._is_bad:
            yield "", True
        self._reset_run()

    def _replaced(self, data: bytes) -> Iterator[Piece]:
        if self._has_text:
            yield "", True
        for _ in data:
            yield REPLACEMENT, True
