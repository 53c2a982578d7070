"""The steps that decoders are made of, but for those of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.matching import Progress
from engine.tokenizer.decode.decoder import Flow, Piece, through
from engine.tokenizer.decode.rules import Rule
from engine.tokenizer.word_cache import WordCache


class Each:
    """Rules one after the other, for each token by itself; a token seen before costs a look-up."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._made_of = WordCache(self.prepared)

    def __call__(self, tokens: list[str]) -> list[str]:
        return list(map(self._made_of.__getitem__, tokens))

    def flow(self) -> Flow:
        return _EachFlow(self._made_of, [rule.flow() for rule in self.rules])

    def joined(self, prepared: Sequence[str]) -> list[str]:
        return list(prepared)

    def forgets(self, token: str) -> bool:
        del token
        return True

    def prepared(self, token: str) -> str:
        for rule in self.rules:
            token = rule(token)
        return token


class _EachFlow:
    def __init__(self, made_of: WordCache[str], flows: Sequence[Flow]) -> None:
        self._made_of = made_of
        self._flows = flows
        self._is_open = False

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        if ends and not self._is_open:
            return [(self._made_of[text], True)]
        self._is_open = not ends
        return through(self._flows, [(text, ends)])

    def finish(self) -> Iterable[Piece]:
        return ()


class FirstApart:
    """One treatment for the first token and another for the rest."""

    def __init__(self, first: Each, others: Each) -> None:
        self._first = first
        self.others = others

    def __call__(self, tokens: list[str]) -> list[str]:
        return self._first(tokens[:1]) + self.others(tokens[1:])

    def flow(self) -> Flow:
        return _FirstApartFlow(self._first.flow(), self.others.flow())


class _FirstApartFlow:
    def __init__(self, first: Flow, others: Flow) -> None:
        self._first = first
        self._others = others
        self._flow = first

    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        flow = self._flow
        if ends:
            self._flow = self._others
        return flow.push(text, ends)

    def finish(self) -> Iterable[Piece]:
        self._flow = self._first
        return ()


@dataclass(frozen=True)
class WordEnd:
    """Makes a space of the mark at which a word ends, and nothing of it in the last token."""

    mark: str

    def __call__(self, tokens: list[str]) -> list[str]:
        spaced = [token.replace(self.mark, " ") for token in tokens[:-1]]
        return spaced + [token.replace(self.mark, "") for token in tokens[-1:]]

    def flow(self) -> Flow:
        return _WordEndFlow(self.mark)


class _WordEndFlow:
    """Holds a token back from its first mark on until it is known whether another one follows."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._progress = Progress(mark)
        self._begin()

    def _begin(self) -> None:
        self._held: list[str] = []
        self._is_found = False
        self._has_ended = False
        self._progress.seen = 0

    def push(self, text: str, ends: bool) -> Iterator[Piece]:
        if self._has_ended:
            yield self._settled(" "), True
        self._held.append(text)
        certain = "" if self._is_found else self._before_mark(text, ends)
        self._has_ended = ends
        yield certain, False

    def finish(self) -> Iterator[Piece]:
        if self._has_ended:
            yield self._settled(""), True

    def _before_mark(self, text: str, ends: bool) -> str:
        """Take out what stands before a mark or what may become one."""
        held = "".join(self._held)
        self._is_found = not self._mark or any(map(self._progress.completes_with, text))
        if ends and not self._is_found:
            self._progress.seen = 0
        certain = held.find(self._mark) if self._is_found else len(held) - self._progress.seen
        self._held = [held[certain:]]
        return held[:certain]

    def _settled(self, space: str) -> str:
        """Return the rest of the token that has ended, and begin another."""
        text = "".join(self._held).replace(self._mark, space)
        self._begin()
        return text


class Fuse:
    """Makes one token of all, also of none."""

    def __call__(self, tokens: list[str]) -> list[str]:
        return ["".join(tokens)]

    def flow(self) -> Flow:
        return _FuseFlow()


class _FuseFlow:
    def push(self, text: str, ends: bool) -> Iterable[Piece]:
        return [(text, False)]

    def finish(self) -> Iterable[Piece]:
        return [("", True)]
