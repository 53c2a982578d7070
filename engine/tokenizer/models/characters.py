"""Spells the characters of a word as tokens; what has no token becomes bytes or the unknown token.

Source: the tokenizers library 0.23 as a definition, its order of tokens included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from engine.errors import RequestError
from engine.tokenizer.word_cache import WordCache

#: A token's id and how many bytes of the word it stands for.
Symbol = tuple[int, int]


@dataclass(frozen=True)
class Unknown:
    """What a character without a token becomes: its bytes' tokens if asked for and all known,
    otherwise `token`, otherwise nothing."""

    token: str | None = None
    fuse: bool = False
    """Whether neighbours without a token are one unknown token."""
    byte_fallback: bool = False


DROPPED = Unknown()


def byte_token(byte: int) -> str:
    """Return the token that stands for a byte in vocabularies with byte fallback."""
    return f"<0x{byte:02X}>"


def byte_tokens(text: str, vocab: Mapping[str, int]) -> list[str] | None:
    """Return the tokens of a text's bytes; None if one of them is missing."""
    tokens = [byte_token(byte) for byte in text.encode()]
    return tokens if all(token in vocab for token in tokens) else None


def unknown_id(text: str, vocab: Mapping[str, int], unk_token: str) -> int:
    """Return the id that a text without a token gets; raise RequestError if it is none either."""
    token_id = vocab.get(unk_token)
    if token_id is None:
        raise RequestError(
            f"the tokenizer has no token for {text!r:.60}: its unk_token {unk_token!r} is not in "
            "its vocabulary"
        )
    return token_id


class Characters:
    """The symbols with which merging begins.

    `prefix` stands before every character but the first, `suffix` after the last one.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        unknown: Unknown,
        prefix: str,
        suffix: str,
    ) -> None:
        self._vocab = vocab
        self._unknown = unknown
        self._prefix = prefix
        self._suffix = suffix
        self.plain = not prefix and not suffix
        """Whether every character with a token is spelled as itself."""
        self._alone = WordCache(self._ids_alone)

    def ids(self, word: str) -> list[int]:
        """Return the ids of the symbols of a word."""
        if self.plain:
            known = list(map(self._vocab.get, word))
            if None not in known:
                return known  # type: ignore[return-value]
            alone = list(map(self._alone.__getitem__, word))
            if all(alone):
                return list(chain.from_iterable(alone))
        return [token_id for token_id, _ in self.symbols(word)]

    def _ids_alone(self, character: str) -> tuple[int, ...]:
        """Return the ids of a character where they do not depend on its neighbours, else none."""
        if character in self._vocab:
            return (self._vocab[character],)
        tokens = byte_tokens(character, self._vocab) if self._unknown.byte_fallback else None
        return tuple(self._vocab[token] for token in tokens or ())

    def symbols(self, word: str) -> list[Symbol]:
        """Return the symbols of a word.

        Raise RequestError for an unknown character if the unknown token is itself no token. The
        bytes of a character come before an unknown token that is still waiting for its neighbour,
        as in the reference.
        """
        symbols: list[Symbol] = []
        waiting: Symbol | None = None
        last = len(word) - 1
        for i, character in enumerate(word):
            size = len(character.encode())
            spelled = (self._prefix if i else "") + character + (self._suffix if i == last else "")
            token_id = self._vocab.get(spelled)
            if token_id is None and self._unknown.byte_fallback:
                tokens = byte_tokens(spelled, self._vocab)
                if tokens is not None:
                    symbols += [(self._vocab[token], 1) for token in tokens]
                    continue
            if token_id is None and self._unknown.token is None:
                continue
            if waiting is not None and (token_id is not None or not self._unknown.fuse):
                symbols.append(waiting)
                waiting = None
            if token_id is not None:
                symbols.append((token_id, size))
            elif waiting is None:
                waiting = unknown_id(character, self._vocab, self._unknown.token or ""), size
            else:
                waiting = waiting[0], waiting[1] + size
        return symbols if waiting is None else [*symbols, waiting]
