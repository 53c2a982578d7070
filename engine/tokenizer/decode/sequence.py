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

from engine.tokenizer.decode.byte_fallback import ByteFallback, byte_of
from engine.tokenizer.decode.decoder import Flow, Piece, Step, TextStream, through
from engine.tokenizer.decode.steps import Each, Fuse
from engine.tokenizer.word_cache import WordCache


class StepDecoder:
    """The decoder of some steps; without any, the tokens are put side by side."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = _with_rules_joined(steps)
        self._whole = _with_bytes_joined(self._steps)

    def __call__(self, tokens: Iterable[str]) -> str:
        now = list(tokens)
        for step in self._whole:
            now = step(now)
        return "".join(now)

    def stream(self) -> TextStream:
        return _StepStream([step.flow() for step in self._steps])


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


def _with_bytes_joined(steps: Sequence[Step]) -> list[Callable[[list[str]], list[str]]]:
    match steps:
        case [Each() as each, ByteFallback(), Fuse(), *rest]:
            return [_JoinedBytes(each), *rest]
        case [ByteFallback(), Fuse(), *rest]:
            return [_JoinedBytes(Each([])), *rest]
    return list(steps)


class _JoinedBytes:
    """ByteFallback between Each and Fuse, in one join.

    Texts are whole characters, so all of it is UTF-8 just if each run of bytes is.
    """

    def __init__(self, each: Each) -> None:
        self._steps = (each, ByteFallback(), Fuse())
        self._bytes = WordCache(lambda token: _bytes_of(each.made_of[token]))

    def __call__(self, tokens: list[str]) -> list[str]:
        try:
            return [b"".join(map(self._bytes.__getitem__, tokens)).decode()]
        except UnicodeDecodeError:
            for step in self._steps:
                tokens = step(tokens)
            return tokens


def _bytes_of(token: str) -> bytes:
    return byte_of(token) or token.encode()
