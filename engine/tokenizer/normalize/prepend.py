"""Puts something before a text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prepend:
    """A Rewrite that puts `prefix` before every text that is not empty.

    It stands for the text's first character.
    """

    prefix: str

    def __call__(self, text: str) -> str:
        return self.prefix + text if text else text

    def sources(self, text: str) -> list[int]:
        return [0] * (len(self.prefix) if text else 0) + list(range(len(text)))
