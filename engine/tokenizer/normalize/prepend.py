"""Puts something before a text: the normalizer Prepend, and what pre-tokenizers do."""

from __future__ import annotations

from dataclasses import dataclass

from engine.tokenizer.aligned import BEFORE_ALL


@dataclass(frozen=True)
class Prepend:
    """A Rewrite that puts `prefix` before every text that is not empty.

    It stands for the text's first character. Where it is itself empty the reference takes the first
    character for what was put there, and that one stands for none.
    """

    prefix: str

    def __call__(self, text: str) -> str:
        return self.prefix + text if text else text

    def sources(self, text: str) -> list[int]:
        if not text:
            return []
        return [0] * len(self.prefix) + [0 if self.prefix else BEFORE_ALL, *range(1, len(text))]


@dataclass(frozen=True)
class Prefix:
    """A Rewrite that puts `prefix` before a text that does not begin with it, nor is empty."""

    prefix: str

    def __call__(self, text: str) -> str:
        return text if text.startswith(self.prefix) or not text else self.prefix + text

    def sources(self, text: str) -> list[int]:
        indices = list(range(len(text)))
        return indices if self(text) == text else [0] * len(self.prefix) + indices
