"""Tokens that spell bytes in GPT-2's alphabet.

A token that leaves the alphabet stands for itself. All tokens together become one text, in which
bytes that are no UTF-8 are U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from engine.tokenizer.alphabet import CHARACTERS, bytes_of
from engine.tokenizer.decode.decoder import Flow, Piece
from engine.tokenizer.decode.utf8 import Utf8Stream

_ALPHABET = frozenset(CHARACTERS)
_SPELL_THEMSELVES = re.compile("[!-~]*")


class ByteLevel:
    """Joins the bytes of all tokens into one."""

    def __call__(self, tokens: list[str]) -> list[str]:
        return self.joined(map(self.prepared, tokens))

    def prepared(self, token: str) -> bytes:
        return bytes_of(token)

    def forgets(self, token: str) -> bool:
        first = bytes_of(token)[:1]
        return first != b"" and not b"\x80" <= first < b"\xc0"

    def joined(self, prepared: Iterable[bytes]) -> list[str]:
        return [b"".join(prepared).decode("utf-8", errors="replace")]

    def flow(self) -> Flow:
        return _ByteLevelFlow()


class _ByteLevelFlow:
    """Holds back the bytes of an unfinished character.

    Of a token that arrives in pieces it holds back what an end of the token, or a character that is
    not in the alphabet, would make two things of.
    """

    def __init__(self) -> None:
        self._text = Utf8Stream()
        self._held: list[str] = []
        self._is_plain = False  # whether the unfinished token is known to stand for itself

    def push(self, text: str, ends: bool) -> Iterator[Piece]:
        yield self._text.push(self._certain(text, ends)), False

    def finish(self) -> Iterator[Piece]:
        yield self._text.flush(), True

    def _certain(self, text: str, ends: bool) -> bytes:
        if self._is_plain:
            self._is_plain = not ends
            return text.encode()
        if ends or not _ALPHABET.issuperset(text):
            self._is_plain = not ends
            whole = "".join([*self._held, text])
            self._held = []
            return bytes_of(whole)
        same = 0
        if not self._held and (found := _SPELL_THEMSELVES.match(text)):
            same = found.end()
        if same < len(text):
            self._held.append(text[same:])
        return text[:same].encode()
