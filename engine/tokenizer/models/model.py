"""What every model is: a vocabulary, and a way to turn one word into tokens of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Part(NamedTuple):
    """A token of a word, and the [start, end) bytes of the word's UTF-8 that it stands for.

    `token` is the spelling that the reference reports: the vocabulary's, or for an unknown stretch
    in some models the stretch itself.
    """

    id: int
    token: str
    start: int
    end: int


class Model(Protocol):
    """One word, as the splitter spells it, into tokens."""

    @property
    def vocab(self) -> Mapping[str, int]:
        """The id of each token by its spelling; added tokens may be missing."""

    def __call__(self, word: str) -> list[int]:
        """Return the ids of one word."""

    def parts(self, word: str) -> list[Part]:
        """Return the same tokens with what each one stands for."""
