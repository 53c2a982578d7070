"""What every decoder is: tokens into text, whole or one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


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
