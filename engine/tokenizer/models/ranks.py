"""The merges of a vocabulary: which pairs of tokens merge, in which order, and into what.

A tokenizer.json lists pairs, and their place is their rank: `MergeRanks`. SentencePiece and
tiktoken rank tokens, and a pair has the rank of the token that it makes: `TokenRanks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from operator import add
from typing import Protocol

#: Two neighbouring ids; None is the border of a word, which never merges.
Pair = tuple[int | None, int | None]


class Ranks(Protocol):
    """The rank of each pair of ids that merges, from 0 up."""

    none: int
    """More than any rank."""

    @property
    def rank_of(self) -> Callable[[Pair, int], int]:
        """What returns the rank of a pair, and its second argument for one that does not merge."""

    def made_of(self, pair: Pair, rank: int) -> int:
        """Return the token that a pair of this rank makes."""

    def merges_any(self, ids: Set[int]) -> bool:
        """Whether one of these tokens can be merged with another."""


class MergeRanks:
    """The ranks of merges that are listed in their order.

    With a `prefix`, which marks tokens inside a word, the right side of a merge loses as many bytes
    as that has.
    """

    def __init__(
        self, vocab: Mapping[str, int], merges: Iterable[Sequence[str]], prefix: str
    ) -> None:
        """Take merges in rank order.

        Raise KeyError if one names a token that the vocabulary lacks, ValueError if a right side
        is too short for the prefix.
        """
        tokens = list(chain.from_iterable(merges))
        lefts, rights = tokens[::2], tokens[1::2]
        join: Callable[[str, str], str] = add
        if prefix:
            size = len(prefix.encode())
            if any(len(right.encode()) < size for right in rights):
                raise ValueError(f"the right side of a merge is shorter than {prefix!r}")
            join = partial(_join_inside, size)
        id_of = vocab.__getitem__
        self._made = list(map(id_of, map(join, lefts, rights)))
        self.none = len(self._made)
        # Of a pair that is listed twice the later place counts.
        pairs = zip(map(id_of, lefts), map(id_of, rights), strict=True)
        self._ranks: dict[Pair, int] = dict(zip(pairs, range(self.none), strict=True))
        self.rank_of: Callable[[Pair, int], int] = self._ranks.get

    def made_of(self, pair: Pair, rank: int) -> int:
        del pair
        return self._made[rank]

    def merges_any(self, ids: Set[int]) -> bool:
        return bool(ids) and not ids.isdisjoint(chain.from_iterable(self._ranks))


class TokenRanks:
    """The ranks of a vocabulary in which a pair has the rank of the token that it makes.

    Tokens may share a rank; the leftmost pair then goes first, whichever token it makes. A table of
    all pairs would take longer to build than the file takes to read, and one text meets few of
    them: each is looked up by how its tokens are spelled when it is first met.
    """

    def __init__(self, vocab: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Take the rank, from 0 up, of each token that merges or is made by merging."""
        self.ranks = ranks
        self.none = max(ranks.values(), default=-1) + 1
        self._vocab = vocab
        self.met = Met(dict(zip(vocab.values(), vocab, strict=True)), ranks, self.none)

    def rank_of(self, pair: Pair, none: int) -> int:
        del none
        return self.met[pair]

    def made_of(self, pair: Pair, rank: int) -> int:
        del rank
        return self._vocab[self.met.spelled(pair)]

    def merges_any(self, ids: Set[int]) -> bool:
        return any(self._vocab[token] in ids for token in self.ranks)


class Met(dict[Pair, int]):
    """The ranks of the pairs met lately."""

    LIMIT = 1 << 18

    def __init__(self, token_of: Mapping[int, str], ranks: Mapping[str, int], none: int) -> None:
        super().__init__()
        self._token_of = token_of
        self._ranks = ranks
        self._none = none

    def spelled(self, pair: Pair) -> str:
        """Return what two tokens spell."""
        left, right = pair
        assert left is not None and right is not None
        return self._token_of[left] + self._token_of[right]

    def __missing__(self, pair: Pair) -> int:
        if len(self) >= self.LIMIT:
            self.clear()
        rank = self._none
        if all(each is not None and self._token_of[each] in self._ranks for each in pair):
            rank = self._ranks.get(self.spelled(pair), rank)
        self[pair] = rank
        return rank


def _join_inside(size: int, left: str, right: str) -> str:
    """Return the token that two make where the right one loses its prefix of so many bytes.

    What cuts a character in two is no token: the reference drops bytes, not characters.
    """
    return left + right.encode()[size:].decode(errors="surrogateescape")
