"""A decoder made of steps, one after the other, and its stream.

The stream is the steps' flows in a row, so every decoder streams. Its texts add up to what the
steps make of the whole list, but for a run of byte tokens that is not UTF-8 (`byte_fallback`).
Nothing is taken back, and the work is linear in the tokens. What is held back is at most
- ByteLevel, ByteFallback: the bytes of one unfinished character, three at most;
- Strip at the end of a text: `stop` of its characters;
- Replace of a text that spans tokens: less than its length;
- Replace of a pattern, or of nothing at all, that spans tokens: all of that text, until it ends;
- the end of words in BPE: the last token, from its first mark on;
- ByteLevel after a step that makes one text of all: what is not printable ASCII and what follows.
A text spans tokens once a step has made one of all of them: Fuse or ByteLevel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol

from engine.tokenizer.alphabet import bytes_of
from engine.tokenizer.decode.byte_fallback import ByteFallback, byte_of, texts_of
from engine.tokenizer.decode.byte_level import ByteLevel
from engine.tokenizer.decode.decoder import Flow, Piece, Step, TextStream, through
from engine.tokenizer.decode.rules import Strip
from engine.tokenizer.decode.steps import Each, FirstApart, Fuse


class Beginning(Protocol):
    """What is done to tokens first: the part for each of them, and the part for all."""

    def prepared(self, token: str) -> Any:
        """Return what of a token can be worked out once and for all."""

    def joined(self, prepared: Sequence[Any]) -> list[str]:
        """Return the list of tokens that the prepared ones become."""

    def forgets(self, token: str) -> bool:
        """Whether, in a text that has begun, nothing depends on what stood before this token."""


class StepDecoder:
    """The decoder of some steps; without any, the tokens are put side by side."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = _with_rules_joined(steps)
        self._beginning, self._rest = _begun(self._steps)
        self.prepared = self._beginning.prepared
        self._apart, joining = _split(self._steps)
        self._spell = _spelling(joining)

    def __call__(self, tokens: Iterable[str]) -> str:
        return self.join([self.prepared(token) for token in tokens])

    def join(self, prepared: Sequence[Any]) -> str:
        tokens = self._beginning.joined(prepared)
        for step in self._rest:
            tokens = step(tokens)
        return "".join(tokens)

    def stream(self, after: Sequence[str] = ()) -> TextStream:
        stream = _StepStream([step.flow() for step in self._steps])
        last = self._last_to_forget(after)
        for token in after[:last]:
            if stream.push(token):
                break  # the text has begun: what follows, up to the last such token, is forgotten
        for token in after[last:]:
            stream.push(token)
        return stream

    def added_bytes(self, token: str) -> bytes | None:
        if self._spell is None:
            return None
        for each in self._apart:
            token = each.prepared(token)
        return self._spell(token)

    def _last_to_forget(self, tokens: Sequence[str]) -> int:
        """Return where the last token stands before which all is forgotten, 0 if there is none."""
        if not all(_only_begins(step) for step in self._rest):
            return 0
        places = range(len(tokens) - 1, -1, -1)
        return next((i for i in places if self._beginning.forgets(tokens[i])), 0)


class _StepStream:
    def __init__(self, flows: Sequence[Flow]) -> None:
        self._flows = flows

    def push(self, token: str) -> str:
        return "".join([text for text, _ in through(self._flows, [(token, True)])])

    def flush(self) -> str:
        pieces: Iterable[Piece] = ()
        for flow in self._flows:
            pieces = [*through([flow], pieces), *flow.finish()]
        return "".join([text for text, _ in pieces])


def _with_rules_joined(steps: Iterable[Step]) -> list[Step]:
    joined: list[Step] = []
    for step in steps:
        if joined and isinstance(step, Each) and isinstance(last := joined[-1], Each):
            joined[-1] = Each([*last.rules, *step.rules])
        else:
            joined.append(step)
    return joined


def _begun(steps: Sequence[Step]) -> tuple[Beginning, Sequence[Step]]:
    """Return the steps with those at the beginning made one that does most of its work once."""
    match steps:
        case [ByteLevel() as step, *rest]:
            return step, rest
        case [ByteFallback(), Fuse(), *rest]:
            return _JoinedBytes(Each([])), rest
        case [Each() as each, ByteFallback(), Fuse(), *rest]:
            return _JoinedBytes(each), rest
        case [Each() as each, *rest]:
            return each, rest
    return Each([]), steps


def _split(steps: Sequence[Step]) -> tuple[list[Each], Sequence[Step]]:
    """Return what is done to a token by itself inside of a text, and the steps after that."""
    apart: list[Each] = []
    for step in steps:
        match step:
            case Each():
                apart.append(step)
            case FirstApart(others=others):
                apart.append(others)
            case _:
                break
    return apart, steps[len(apart) :]


def _spelling(steps: Sequence[Step]) -> Callable[[str], bytes] | None:
    """Return the bytes of one token under the steps from the first that joins tokens on.

    None where a token has none of its own.
    """
    spell: Callable[[str], bytes]
    match steps:
        case [ByteLevel(), *rest]:
            spell = bytes_of
        case [ByteFallback(), Fuse(), *rest]:
            spell = _of_fallback
        case [ByteFallback()]:
            spell, rest = _of_fallback, []
        case [] | [Fuse(), *_]:
            spell, rest = str.encode, [*steps[1:]]
        case _:
            return None
    return spell if all(map(_only_begins, rest)) else None


def _of_fallback(token: str) -> bytes:
    return byte_of(token) or token.encode()


def _only_begins(step: Step) -> bool:
    """Whether a step, given one text, has no more to do once something of it is out."""
    return isinstance(step, Each) and all(
        isinstance(rule, Strip) and not rule.stop for rule in step.rules
    )


class _JoinedBytes:
    """ByteFallback between Each and Fuse, in one join.

    Texts are whole characters, so all of it is UTF-8 just if each run of bytes is.
    """

    def __init__(self, each: Each) -> None:
        self._each = each

    def prepared(self, token: str) -> bytes:
        token = self._each.prepared(token)
        byte = byte_of(token)
        return _Byte(byte) if byte else token.encode()

    def forgets(self, token: str) -> bool:
        return type(self.prepared(token)) is bytes

    def joined(self, prepared: Sequence[bytes]) -> list[str]:
        try:
            return [b"".join(prepared).decode()]
        except UnicodeDecodeError:
            runs = groupby(prepared, type)
            return ["".join(_text(kind is _Byte, b"".join(run)) for kind, run in runs)]


class _Byte(bytes):
    """The byte of a byte token, as against the UTF-8 of a text."""


def _text(is_run: bool, data: bytes) -> str:
    return "".join(texts_of(data)) if is_run else data.decode()
