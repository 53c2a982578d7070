"""Cuts out SentencePiece's user-defined symbols: tokens whatever stands beside them."""

from __future__ import annotations

from engine.tokenizer.added import AddedToken, AddedTokens
from engine.tokenizer.split.step import Cut, Span


class UserDefinedCut(Cut):
    """Cuts a text before and after each symbol: the leftmost first, then the longest."""

    def __init__(self, symbols: dict[str, int]) -> None:
        self._symbols = AddedTokens(
            AddedToken(token_id, symbol, special=False, normalized=True)
            for symbol, token_id in symbols.items()
        )

    def spans(self, text: str) -> list[Span]:
        return [(found.start, found.end) for found in self._symbols.find(text)]
