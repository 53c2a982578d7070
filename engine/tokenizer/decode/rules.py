"""Rules that make something of one token, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from engine.matching import Progress
from engine.tokenizer.decode.decoder import Flow, Piece
from engine.tokenizer.normalize.replace import Replace, ReplacePattern


class Rule(Protocol):
    """What is made of one token."""

    def __call__(self, token: str) -> str:
        """Return what becomes of a whole token."""

    def flow(self) -> Flow:
        """Return the rule for tokens that arrive in pieces."""


@dataclass(frozen=True)
class Strip:
    """Takes up to `start` and `stop` times one character off the two ends.

    Where the two overlap, and where a token is shorter than `stop`, nothing is left; the reference
    panics there.
    """

    character: str
    start: int
    stop: int

    def __call__(self, token: str) -> str:
        first = min(self.start, len(token) - len(token.lstrip(self.character)))
        last = min(self.stop, len(token) - len(token.rstrip(self.character)))
        return token[first : len(token) - last]

    def flow(self) -> Flow:
        return _StripFlow(self)


class _StripFlow:
    """Holds back the characters at the end of the text so far that `stop` may take off."""

    def __init__(self, rule: Strip) -> None:
        self._rule = rule
        self._begin()

    def _begin(self) -> None:
        self._left = self._rule.start
        self._held = 0

    def push(self, text: str, ends: bool) -> Iterator[Piece]:
        character = self._rule.character
        if self._left:
            first = min(self._left, len(text) - len(text.lstrip(character)))
            self._left = self._left - first if first == len(text) else 0
            text = text[first:]
        kept = text.rstrip(character)
        run = len(text) - len(kept)
        if kept:
            kept, self._held = character * self._held + kept, 0
        run += self._held
        self._held = min(self._rule.stop, run)
        yield kept + character * (run - self._held), ends
        if ends:
            self._begin()

    def finish(self) -> Iterable[Piece]:
        return ()


@dataclass(frozen=True)
class Replaced:
    """Puts one text in the place of others, as the normalizer of that name does."""

    rewrite: Replace | ReplacePattern

    def __call__(self, token: str) -> str:
        return self.rewrite(token)

    def flow(self) -> Flow:
        match self.rewrite:
            case Replace(old) if len(old) == 1:
                return _CharactersFlow(self.rewrite)
            case Replace(old, content) if old:
                return _ReplaceFlow(old, content)
        return _WholeTokensFlow(self.rewrite)


class _ReplaceFlow:
    """Holds back what may be the beginning of the text to replace: less than its length."""

    def __init__(self, old: str, content: str) -> None:
        self._progress = Progress(old)
        self._content = content
        self._held = ""

    def push(self, text: str, ends: bool) -> Iterator[Piece]:
        held = self._held + text
        out: list[str] = []
        done = 0
        for end, character in enumerate(text, start=len(self._held) + 1):
            if self._progress.completes_with(character):
                out += (held[done : end - self._progress.size], self._content)
                done, self._progress.seen = end, 0
        if ends:
            self._progress.seen = 0
        safe = len(held) - self._progress.seen
        self._held = held[safe:]
        yield "".join([*out, held[done:safe]]), ends

    def finish(self) -> Iterable[Piece]:
        return ()


@dataclass(frozen=True)
class Continued:
    """Takes the mark of a continued word off a token, and puts a space before one without it.

    Without a mark every token has a space put before it.
    """

    mark: str | None

    def __call__(self, token: str) -> str:
        if self.mark is None or not token.startswith(self.mark):
            return " " + token
        return token[len(self.mark) :]

    def flow(self) -> Flow:
        return _ContinuedFlow(self)


class _ContinuedFlow:
    """Holds back what may be the beginning of the mark."""

    def __init__(self, rule: Continued) -> None:
        self._rule = rule
        self._held = ""
        self._is_known = False

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        if not self._is_known:
            mark, text = self._rule.mark, self._held + text
            self._is_known = ends or mark is None or not mark.startswith(text) or mark == text
            self._held = "" if self._is_known else text
            text = self._rule(text) if self._is_known else ""
        self._is_known = self._is_known and not ends
        return [(text, ends)]

    def finish(self) -> Iterable[Piece]:
        return ()


class _CharactersFlow:
    """A rule that looks at one character at a time holds nothing back."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        return [(self._rule(text), ends)]

    def finish(self) -> Iterable[Piece]:
        return ()


class _WholeTokensFlow:
    """Holds a token back until it ends: what a pattern matches may depend on all of it."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self._rule = rule
        self._held: list[str] = []

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        self._held.append(text)
        if not ends:
            return [("", False)]
        token = "".join(self._held)
        self._held.clear()
        return [(self._rule(token), True)]

    def finish(self) -> Iterable[Piece]:
        return ()
