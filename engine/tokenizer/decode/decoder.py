"""What every decoder is: tokens into text, whole or one at a time; and what each step of one is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


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

    def prepared(self, token: str) -> Any:
        """Return what of a token can be worked out once and for all; it is never None."""

    def join(self, prepared: Sequence[Any]) -> str:
        """Return the text of the whole sequence, of tokens that were `prepared`."""

    def stream(self, after: Sequence[str] = ()) -> TextStream:
        """Return a stream whose texts add up to what the whole sequence gives.

        It is as if the tokens `after` had been pushed already, and their text taken.
        """

    def added_bytes(self, token: str) -> bytes | None:
        """Return what a token adds to a text that has begun, which may be half a character.

        None where that depends on the tokens beside it.
        """


#: A piece of a token, and whether the token ends with it.
Piece = tuple[str, bool]


class Flow(Protocol):
    """A step at work while its tokens arrive, and leave, in pieces.

    A piece goes out as soon as no token that may follow can change it. An empty piece that does
    not end its token says that a token is there.
    """

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        """Return what is certain with one more piece."""

    def finish(self) -> Iterable[Piece]:
        """Return the rest when no token follows; the flow is then as new."""


class Step(Protocol):
    """One step of a decoder: a list of tokens into a list of tokens."""

    def __call__(self, tokens: list[str]) -> list[str]:
        """Return what the step makes of the whole list."""

    def flow(self) -> Flow:
        """Return the step for tokens that arrive in pieces."""


def through(flows: Iterable[Flow], pieces: Iterable[Piece]) -> Iterable[Piece]:
    """Return what comes out at the end of some flows in a row."""
    for flow in flows:
        pieces = [out for text, ends in pieces for out in flow.push(text, ends)]
    return pieces
