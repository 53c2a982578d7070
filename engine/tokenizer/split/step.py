"""One step of a pre-tokenizer: it cuts a piece of text, or rewrites it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from engine.tokenizer.aligned import Aligned, Rewrite

Span = tuple[int, int]


class Step(Protocol):
    """What becomes of one piece of text."""

    def pieces(self, text: str) -> list[str]:
        """Return the pieces it becomes; none is empty unless `text` is."""

    def aligned(self, piece: Aligned) -> list[Aligned]:
        """Return the same pieces with where they come from."""


class Cut(ABC):
    """A step that cuts and changes no character."""

    @abstractmethod
    def spans(self, text: str) -> list[Span]:
        """Return the non-empty pieces of a text as [start, end), in order; they need not touch."""

    def pieces(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self.spans(text)]

    def aligned(self, piece: Aligned) -> list[Aligned]:
        return [piece.slice(start, end) for start, end in self.spans(piece.text)]


@dataclass(frozen=True)
class Rewriting:
    """A step that rewrites each piece and cuts nothing."""

    rewrite: Rewrite

    def pieces(self, text: str) -> list[str]:
        return [self.rewrite(text)]

    def aligned(self, piece: Aligned) -> list[Aligned]:
        return [piece.rewritten(self.rewrite)]


@dataclass(frozen=True)
class RewritingStart:
    """A step that rewrites the piece with which the original text begins, and leaves the others.

    Which piece that is only an aligned one knows; `pieces` is of a whole text.
    """

    rewrite: Rewrite

    def pieces(self, text: str) -> list[str]:
        return [self.rewrite(text)]

    def aligned(self, piece: Aligned) -> list[Aligned]:
        return [piece if piece.origin else piece.rewritten(self.rewrite)]
