"""Cuts a normalised text into words (pre-tokens), which the model reads one by one."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tokenizer.aligned import Aligned, Chain, Rewrite
from engine.tokenizer.split.step import Rewriting, RewritingStart, Step


class Splitter:
    """The pre-tokenizer: cuts and rewrites in the file's order.

    A rewrite looks at one piece alone. So `words` and `aligned_words` leave out a rewrite that
    comes last, and `finish` does it for one word: whoever keeps results by word finishes a word
    once.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        """Cuts and rewrites in their order, but for the one that is in `finish`."""
        self.finish: Rewrite = Chain()
        if self.steps and isinstance(last := self.steps[-1], Rewriting):
            self.finish = last.rewrite
            self.steps.pop()
        # Only up to the last step that asks for a piece's place need places be known.
        placed = [isinstance(step, RewritingStart) for step in self.steps]
        self._known_from = len(placed) - placed[::-1].index(True) if any(placed) else 0

    def __call__(self, text: str) -> list[str]:
        """Return the words of a whole text as the model reads them."""
        return [self.finish(word) for word in self.words(Aligned.original(text))]

    def words(self, piece: Aligned) -> list[str]:
        """Return the unfinished words."""
        pieces = [part.text for part in _cut(piece, self.steps[: self._known_from])]
        for step in self.steps[self._known_from :]:
            pieces = [part for text in pieces for part in step.pieces(text)]
        return pieces

    def aligned_words(self, piece: Aligned) -> list[Aligned]:
        """Return the unfinished words with where they come from."""
        return _cut(piece, self.steps)


def _cut(piece: Aligned, steps: Sequence[Step]) -> list[Aligned]:
    pieces = [piece] if piece.text else []
    for step in steps:
        pieces = [part for whole in pieces for part in step.aligned(whole)]
    return pieces
