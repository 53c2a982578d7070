"""The streaming detokenizer: ids in, text out as soon as a token completes it."""

from __future__ import annotations

from collections.abc import Callable

from engine.tokenizer.decode.decoder import TextStream


class TokenStream:
    """The text of a growing sequence of ids.

    The pieces and the flush add up to `decode` of the whole sequence; no piece holds half a
    character. Ids without a token give no text.
    """

    def __init__(self, token_of: Callable[[int], str | None], text: TextStream) -> None:
        """Take a lookup that gives None for an id without text, and the decoder's stream."""
        self._token_of = token_of
        self._text = text

    def push(self, token_id: int) -> str:
        """Return the text that became certain with this id; raises RequestError if negative."""
        token = self._token_of(token_id)
        return "" if token is None else self._text.push(token)

    def flush(self) -> str:
        """Return the rest once no id follows: U+FFFD for a character that was cut short."""
        return self._text.flush()
