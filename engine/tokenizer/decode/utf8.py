"""Bytes that arrive in pieces, into text: no character is shown before it is whole.

Bytes that are no UTF-8 become U+FFFD, one for each maximal part of a character, as soon as no byte
that may follow can complete it.
Source: Unicode 15, section 3.9, tables 3-7 (which bytes make a character) and 3-8.
"""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"

_UNFINISHED = re.compile(
    rb"(?:[\xc2-\xf4]|\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]?|[\xf1-\xf3][\x80-\xbf]{1,2}|\xf4[\x80-\x8f][\x80-\xbf]?)\Z"
)


def unfinished(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of one character: three at most."""
    found = _UNFINISHED.search(data, max(0, len(data) - 3))
    return len(data) - found.start() if found else 0


class Utf8Stream:
    """Holds back the bytes of an unfinished character."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, data: bytes) -> str:
        """Return the text that is certain with these bytes."""
        data = self._held + data
        certain = len(data) - unfinished(data)
        self._held = data[certain:]
        return data[:certain].decode("utf-8", errors="replace")

    def flush(self) -> str:
        """Return U+FFFD if a character was cut short; the stream is then as new."""
        held, self._held = self._held, b""
        return held.decode("utf-8", errors="replace")
