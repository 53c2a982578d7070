"""The streaming detokenizer: ids in, text out as soon as a token completes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.tokenizer.decode.decoder import Decoder


class TokenStream:
    """The text of a growing sequence of ids.

    The pieces and the flush add up to `decode` of the whole sequence; no piece holds half a
    character, and none takes back what is out. Ids without a token give no text. The one exception
    is a run of byte tokens that is not UTF-8, of which `decode` shows no character at all and a
    stream those that were out before the run went bad (see `decode/byte_fallback.py`).

    After a prompt the text is what the ids add to that of the prompt, so an answer keeps its first
    space where a text alone would lose it. A character that begins in the prompt and is completed
    by the ids belongs to them, for the text of the prompt does not hold it.
    """

    def __init__(
        self,
        token_of: Callable[[int], str | None],
        decoder: Decoder,
        after: Iterable[int] = (),
    ) -> None:
        """Take a lookup that gives None for an id without text, and the ids of a prompt."""
        self._token_of = token_of
        tokens = [token for token in map(token_of, after) if token is not None]
        self._text = decoder.stream(tokens)
        # How the prompt's text would end if nothing followed; the ids may begin with the same.
        self._known = decoder.stream(tokens).flush()

    def push(self, token_id: int) -> str:
        """Return the text that became certain with this id; raises RequestError if negative."""
        token = self._token_of(token_id)
        return "" if token is None else self._new(self._text.push(token))

    def flush(self) -> str:
        """Return the rest once no id follows: U+FFFD for a character that was cut short.

        The stream is then as one that was made without a prompt.
        """
        text = self._new(self._text.flush())
        self._known = ""
        return text

    def _new(self, text: str) -> str:
        """Return a text without what the prompt's text ends with already."""
        same = 0
        for known, new in zip(self._known, text, strict=False):
            if known != new:
                self._known = ""
                break
            same += 1
        self._known = self._known[same:]
        return text[same:]
