"""Whole sequences of ids into text; what is worked out for a token is kept by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from engine.tokenizer.decode.decoder import Decoder


class IdDecoder:
    """A decoder for ids. `token_of` gives None for an id without text, and refuses what is none."""

    def __init__(self, token_of: Callable[[int], str | None], decoder: Decoder) -> None:
        self._token_of = token_of
        self._decoder = decoder
        self._prepared = _Prepared(self._prepare)

    def __call__(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence; raises RequestError for what is no id."""
        ids = list(ids)
        if not {int}.issuperset(map(type, ids)):
            for token_id in ids:
                self._token_of(token_id)  # for True and 1.0 are keys as good as 1
        prepared = list(map(self._prepared.__getitem__, ids))
        if None in prepared:
            prepared = [each for each in prepared if each is not None]
        return self._decoder.join(prepared)

    def _prepare(self, token_id: int) -> Any:
        token = self._token_of(token_id)
        return None if token is None else self._decoder.prepared(token)


class _Prepared(dict[int, Any]):
    """As many entries as there are tokens at most."""

    def __init__(self, prepare: Callable[[int], Any]) -> None:
        super().__init__()
        self._prepare = prepare

    def __missing__(self, token_id: int) -> Any:
        prepared = self._prepare(token_id)
        if prepared is not None:
            self[token_id] = prepared
        return prepared
