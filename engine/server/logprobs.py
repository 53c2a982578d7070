"""Log-probabilities in the API's two shapes: lists side by side for completions, objects for chats.

JSON has no infinity: a token that could not be had has the log-probability -9999, as with OpenAI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.generate.answer import TokenLogprob
from engine.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0


class Names:
    """How tokens are written: their text or, `by_id`, in a way that tells every two apart."""

    def __init__(self, tokenizer: Tokenizer | None, by_id: bool) -> None:
        self._tokenizer, self._by_id = tokenizer, by_id

    def bytes(self, token: int) -> list[int] | None:
        """Those that it adds to a text; None where that depends on the tokens beside it."""
        spelled = None if self._tokenizer is None else self._tokenizer.token_bytes(token)
        return None if spelled is None else list(spelled)

    def text(self, token: int) -> str:
        """Bytes that are no text by themselves become U+FFFD."""
        if self._by_id or self._tokenizer is None:
            return f"token_id:{token}"
        spelled = self.bytes(token)
        if spelled is None:
            return self._tokenizer.decode([token])
        return bytes(spelled).decode(errors="replace")

    def key(self, token: int) -> str:
        """The same, where two tokens must not have one name: what is no text is written as bytes."""
        spelled = None if self._by_id else self.bytes(token)
        try:
            return self.text(token) if spelled is None else bytes(spelled).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled or ())


def of_completion(
    entries: Sequence[TokenLogprob | None], tokens: Sequence[int], names: Names, offset: int = 0
) -> dict[str, Any]:
    """Lists side by side; a prompt's first token has neither a probability nor others beside it.

    `offset` is where the text that the entries' own offsets count from begins in the one that is given.
    """
    return {
        "tokens": [names.key(token) for token in tokens],
        "token_logprobs": [entry and _finite(entry.logprob) for entry in entries],
        "top_logprobs": [entry and _ranked(entry, names) for entry in entries],
        "text_offset": [offset + (entry.text_offset if entry else 0) for entry in entries],
    }


def of_chat(entries: Sequence[TokenLogprob], names: Names) -> dict[str, Any]:
    return {"content": [of_token(entry, names) for entry in entries], "refusal": None}


def of_token(entry: TokenLogprob, names: Names) -> dict[str, Any]:
    top = [_object(token, logprob, names) for token, logprob in entry.top]
    return {**_object(entry.token_id, entry.logprob, names), "top_logprobs": top}


def of_prompt(entries: Sequence[TokenLogprob | None], names: Names) -> list[Any]:
    """The extension `prompt_logprobs`: for each token by its id the log-probability of it and of others.

    Nothing foretells the first.
    """
    return [entry and _by_id(entry, names) for entry in entries]


def _by_id(entry: TokenLogprob, names: Names) -> dict[str, Any]:
    held = {entry.token_id: entry.logprob, **dict(entry.top)}
    return {
        str(token): {"logprob": _finite(logprob), "decoded_token": names.text(token)}
        for token, logprob in held.items()
    }


def _ranked(entry: TokenLogprob, names: Names) -> dict[str, float]:
    """By name, the token itself always among them; of those that are written alike the likeliest counts."""
    ranked: dict[str, float] = {}
    for token, logprob in (*entry.top, (entry.token_id, entry.logprob)):
        ranked.setdefault(names.key(token), _finite(logprob))
    return ranked


def _object(token: int, logprob: float, names: Names) -> dict[str, Any]:
    return {"token": names.text(token), "logprob": _finite(logprob), "bytes": names.bytes(token)}


def _finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)
