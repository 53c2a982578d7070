"""Puts something before a text that does not begin with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prefix:
    """A Rewrite that puts `prefix` before a text that does not begin with it, nor is empty."""

    prefix: str

    def __call__(self, text: str) -> str:
        return text if text.startswith(self.prefix) or not text else self.prefix + text

    def sources(self, text: str) -> list[int]:
        indices = list(range(len(text)))
        return indices if self(text) == text else [0] * len(self.prefix) + indices
