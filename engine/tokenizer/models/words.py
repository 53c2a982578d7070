"""WordPiece and WordLevel: words, and parts of words that are looked up from the left.

Source: Schuster and Nakajima 2012 (WordPiece); the tokenizers library 0.23 as a definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from engine.tokenizer.models.characters import unknown_id
from engine.tokenizer.models.model import Part


class WordLevelModel:
    """Takes each word whole; a word without a token becomes the unknown token."""

    def __init__(self, vocab: Mapping[str, int], unk_token: str) -> None:
        self.vocab = vocab
        self._unk_token = unk_token

    def __call__(self, word: str) -> list[int]:
        """Return the id of one word; raise RequestError if it has none and nor has unknown."""
        return [part.id for part in self.parts(word)]

    def parts(self, word: str) -> list[Part]:
        """Return the same token with what it stands for."""
        if word in self.vocab:
            return [Part(self.vocab[word], word, 0, len(word.encode()))]
        return [unknown_part(word, self.vocab, self._unk_token)]


class WordPieceModel:
    """Takes the longest token with which the rest of a word begins, again and again.

    `prefix` marks tokens inside a word. A word that cannot be spelled so, or that has more than
    `longest` characters, becomes the unknown token.
    """

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str, prefix: str = "##", longest: int = 100
    ) -> None:
        self.vocab = vocab
        self._unk_token = unk_token
        self._prefix = prefix
        self._longest = longest

    def __call__(self, word: str) -> list[int]:
        """Return the ids of one word; raise RequestError if it has none and nor has unknown."""
        return [part.id for part in self.parts(word)]

    def parts(self, word: str) -> list[Part]:
        """Return the same tokens with what each one stands for."""
        parts: list[Part] = []
        start = where = 0
        while start < len(word) <= self._longest:
            for end in range(min(len(word), start + self._longest_token), start, -1):
                token = (self._prefix if start else "") + word[start:end]
                if token in self.vocab:
                    break
            else:
                break
            size = len(word[start:end].encode())
            parts.append(Part(self.vocab[token], token, where, where + size))
            start, where = end, where + size
        if start < len(word):
            return [unknown_part(word, self.vocab, self._unk_token)]
        return parts

    @cached_property
    def _longest_token(self) -> int:
        """Return how many characters a token has at most."""
        return max(map(len, self.vocab), default=0)


def unknown_part(word: str, vocab: Mapping[str, int], unk_token: str) -> Part:
    """Return a whole word as the unknown token; raise RequestError if that is no token."""
    return Part(unknown_id(word, vocab, unk_token), unk_token, 0, len(word.encode()))
