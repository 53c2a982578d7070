"""What a tokenizer does with a text, step by step: for whoever wants to see how tokens come about.

The steps are the tokenizer's own: its stages are asked one after the other, and what each gives is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import regex

from engine.tokenizer.added import Allows
from engine.tokenizer.aligned import Aligned
from engine.tokenizer.models.bpe import BytePairModel, Merging
from engine.tokenizer.models.model import Part
from engine.tokenizer.models.unigram import UnigramModel
from engine.tokenizer.patterns.oniguruma import FLAGS
from engine.tokenizer.split.pattern import Split
from engine.tokenizer.split.step import Cut
from engine.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rule:
    """What cut a word out: a step of the splitter, counted from 0, by its name.

    Where that is a pattern of alternatives, `alternative` is the one that matched, `which` its place
    among `of`; they are None where what is left between two matches became the word.
    """

    step: int
    name: str
    pattern: str | None = None
    alternative: str | None = None
    which: int | None = None
    of: int | None = None


@dataclass(frozen=True)
class Word:
    """A word as the model reads it, the characters [start, end) of the text it stands for, its tokens.

    `rule` is None where nothing was cut. `merging` is there for byte-pair models, piece by piece.
    """

    text: str
    start: int
    end: int
    rule: Rule | None
    parts: list[Part]
    scores: list[float] | None = None
    merging: list[Merging] = field(default_factory=list)


@dataclass(frozen=True)
class Added:
    """A token that is written in the text itself, and the characters [start, end) that it took."""

    id: int
    text: str
    start: int
    end: int


def steps(tokenizer: Tokenizer, text: str, allows: Allows) -> Iterator[Word | Added]:
    """Yields the words of a text and the added tokens between them, in order."""
    for piece in tokenizer.pieces(text, allows):
        if isinstance(piece, Aligned):
            for word, rule in _words(tokenizer, piece):
                yield _word(tokenizer, word, rule)
        else:
            token, matched = piece
            yield Added(token, matched.text, *matched.span(0, len(matched.text)))


def _words(tokenizer: Tokenizer, piece: Aligned) -> Iterator[tuple[Aligned, Rule | None]]:
    """The unfinished words of a piece, each with the last step that cut it from something larger."""
    words: list[tuple[Aligned, Rule | None]] = [(piece, None)] if piece.text else []
    for number, step in enumerate(tokenizer.splitter.steps):
        found = []
        for whole, rule in words:
            parts = step.aligned(whole)
            if isinstance(step, Split):
                rules = [
                    _matched(number, step, whole.text, *span) for span in step.spans(whole.text)
                ]
            else:
                rules = [Rule(number, type(step).__name__)] * len(parts)
            cut = isinstance(step, Cut) and [part.text for part in parts] != [whole.text]
            # A pattern that takes all of a piece has still found it; another cut has done nothing.
            found += [
                (part, new if cut or (isinstance(step, Split) and rule is None) else rule)
                for part, new in zip(parts, rules, strict=True)
            ]
        words = found
    yield from words


def _matched(number: int, step: Split, text: str, start: int, end: int) -> Rule:
    branches = alternatives(step.pattern)
    for which, branch in enumerate(branches):
        match = _compiled(branch).match(text, start)
        if match is not None and match.end() == end > start:
            return Rule(number, "Split", step.pattern, branch, which, len(branches))
    return Rule(number, "Split", step.pattern, None, None, len(branches))


def alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern: what stands between the bars outside of groups and classes."""
    found, start, depth, in_class = [], 0, 0, 0
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 1
        elif character == "[":
            in_class += 1
        elif character == "]":
            in_class -= 1
        elif not in_class and character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0 and not in_class:
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, FLAGS)


def _word(tokenizer: Tokenizer, word: Aligned, rule: Rule | None) -> Word:
    model = tokenizer.model
    finished = tokenizer.splitter.finish(word.text)
    parts = model.parts(finished)
    scores = [model.score(part.id) for part in parts] if isinstance(model, UnigramModel) else None
    merging = model.merging(finished) if isinstance(model, BytePairModel) else []
    return Word(finished, *word.span(0, len(word.text)), rule, parts, scores, merging)
