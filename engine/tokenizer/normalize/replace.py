"""Puts one text in the place of another."""

from __future__ import annotations

from dataclasses import dataclass, field

import regex

from engine.tokenizer.aligned import BEFORE_ALL
from engine.tokenizer.patterns.matches import find_spans
from engine.tokenizer.patterns.oniguruma import FLAGS


@dataclass(frozen=True)
class Replace:
    """A Rewrite that puts `content` in the place of every `old`.

    All of `content` stands for the last character that it replaced, and the content put where an
    empty text matched for the character before it.
    """

    old: str
    content: str

    def __call__(self, text: str) -> str:
        # The reference finds nothing in an empty text, not even an empty one.
        return text.replace(self.old, self.content) if text else text

    def sources(self, text: str) -> list[int]:
        pattern = regex.compile(regex.escape(self.old))
        return _sources(find_spans(pattern, text), len(self.content), len(text))


@dataclass(frozen=True)
class ReplacePattern:
    """A Rewrite that puts `content` in the place of every match of a pattern, as `Replace` does."""

    pattern: str
    content: str
    _compiled: regex.Pattern[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compiled", regex.compile(self.pattern, FLAGS))

    def __call__(self, text: str) -> str:
        kept = []
        done = 0
        for start, end in find_spans(self._compiled, text):
            kept.append(text[done:start])
            done = end
        kept.append(text[done:])
        return self.content.join(kept)

    def sources(self, text: str) -> list[int]:
        return _sources(find_spans(self._compiled, text), len(self.content), len(text))


def _sources(spans: list[tuple[int, int]], size: int, length: int) -> list[int]:
    """Return the sources where `size` characters replace each of the spans."""
    sources: list[int] = []
    done = 0
    for start, end in spans:
        sources.extend(range(done, start))
        sources.extend([end - 1 if end else BEFORE_ALL] * size)
        done = end
    sources.extend(range(done, length))
    return sources
