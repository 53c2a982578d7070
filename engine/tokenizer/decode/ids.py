"""Whole sequences of ids into text; what is worked out for a token is kept by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from engine.tokenizer.decode.decoder import Decoder


class IdDecoder:
    """A decoder for ids. `token_of` gives None for an id without text, and refuses what is none."""

    #: What is worked out is kept for ids below this; a file may number its tokens as it likes.
    LIMIT = 1 << 20

    def __init__(
        self, token_of: Callable[[int], str | None], decoder: Decoder, largest_id: int
    ) -> None:
        self._token_of = token_of
        self._decoder = decoder
        # A list, asked for all ids at once, answers four times as fast as a dict.
        self._prepared: list[Any] = [None] * (min(largest_id, self.LIMIT) + 1)

    def __call__(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence; raises RequestError for what is no id."""
        ids = list(ids)
        # True and 1.0 are as good an index as 1, and the last element has the index -1.
        if not {int}.issuperset(map(type, ids)) or min(ids, default=0) < 0:
            for token_id in ids:
                self._token_of(token_id)
        prepared = self._all_prepared(ids)
        if prepared is None:
            of = {token_id: self._prepare(token_id) for token_id in set(ids)}
            prepared = [each for token_id in ids if (each := of[token_id]) is not None]
        return self._decoder.join(prepared)

    def _all_prepared(self, ids: list[int]) -> Sequence[Any] | None:
        """Return what is kept for the ids, None where that may not be all."""
        try:
            if len(ids) > 1:
                prepared = itemgetter(*ids)(self._prepared)
            else:
                prepared = [self._prepared[token_id] for token_id in ids]
        except IndexError:
            return None
        return prepared if all(prepared) else None

    def _prepare(self, token_id: int) -> Any:
        """Return what is worked out for a token, None for an id without text."""
        is_kept = token_id < len(self._prepared)
        if is_kept and (known := self._prepared[token_id]) is not None:
            return known
        token = self._token_of(token_id)
        prepared = None if token is None else self._decoder.prepared(token)
        if is_kept:
            self._prepared[token_id] = prepared
        return prepared
