"""SentencePiece's user-defined symbols: words that are tokens, whatever a model makes of them."""

from __future__ import annotations

from collections.abc import Mapping

from engine.tokenizer.models.model import Model, Part


class UserDefinedModel:
    """Takes a word that is a symbol whole, and leaves every other word to `model`."""

    def __init__(self, model: Model, symbols: Mapping[str, int]) -> None:
        self._model = model
        self._symbols = symbols

    @property
    def vocab(self) -> Mapping[str, int]:
        return self._model.vocab

    def __call__(self, word: str) -> list[int]:
        token_id = self._symbols.get(word)
        return self._model(word) if token_id is None else [token_id]

    def parts(self, word: str) -> list[Part]:
        token_id = self._symbols.get(word)
        if token_id is None:
            return self._model.parts(word)
        return [Part(token_id, word, 0, len(word.encode()))]
