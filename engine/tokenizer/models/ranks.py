"""The merges of a vocabulary: which pairs of tokens merge, in which order, and into what.

A tokenizer.json lists pairs, and their place is their rank: `MergeRanks`. SentencePiece and
tiktoken rank tokens, and a pair has the rank of the token that it makes: `TokenRanks`.

A table of all pairs of ids would take longer to build than the whole file takes to read, and one
text meets few of them. So the rank of a pair is looked up by how its tokens are spelled when it is
first met.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain, starmap
from operator import add

#: Two neighbouring ids; None is the border of a word, which never merges.
Pair = tuple[int | None, int | None]


#: Stands in no token: it cannot be written in UTF-8.
_BETWEEN = "\ud800"


class Ranks(dict[Pair, int]):
    """The rank of each pair of ids met lately; `none` for a pair that does not merge.

    `made` holds the id of the token that a pair makes, once its rank was asked for.
    """

    LIMIT = 1 << 18

    #: What two tokens make.
    _join: Callable[[str, str], str] = staticmethod(add)

    def __init__(self, vocab: Mapping[str, int], tokens: Set[str], none: int) -> None:
        super().__init__()
        self._vocab = vocab
        self.tokens = tokens
        """Every token that can be merged."""
        self.none = none
        self.made: dict[Pair, int] = {}
        self.token_of = dict(zip(vocab.values(), vocab, strict=True))
        """The spelling of each id."""

    def __missing__(self, pair: Pair) -> int:
        left_id, right_id = pair
        if left_id is None or right_id is None:
            return self.none
        if len(self) >= self.LIMIT:
            self.clear()
        left, right = self.token_of[left_id], self.token_of[right_id]
        made = self._vocab.get(self._join(left, right))
        rank = self.none if made is None else self._search(left, right, made)
        if made is not None and rank != self.none:
            self.made[pair] = made
        self[pair] = rank
        return rank

    @abstractmethod
    def _search(self, left: str, right: str, made: int) -> int:
        """Return the rank at which two tokens make this one, `none` if they do not merge."""


class TokenRanks(Ranks):
    """The ranks of a vocabulary in which a pair has the rank of the token that it makes.

    Tokens may share a rank; the leftmost pair then goes first, whichever token it makes.
    """

    def __init__(self, vocab: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Take the rank, from 0 up, of each token that merges or is made by merging."""
        super().__init__(vocab, ranks.keys(), max(ranks.values(), default=-1) + 1)
        self.ranks = ranks

    def _search(self, left: str, right: str, made: int) -> int:
        if left in self.ranks and right in self.ranks:
            return self.ranks.get(left + right, self.none)
        return self.none


class MergeRanks(Ranks):
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
        merges = list(merges)
        # One string for each merge: pairs would keep the garbage collector busy.
        self._rank_of_merge = dict(zip(map(_BETWEEN.join, merges), range(len(merges)), strict=True))
        super().__init__(vocab, frozenset(chain.from_iterable(merges)), len(merges))
        if prefix:
            size = len(prefix.encode())
            if any(len(right.encode()) < size for _, right in merges):
                raise ValueError(f"the right side of a merge is shorter than {prefix!r}")
            self._join = partial(_join_inside, size)
        made = frozenset(starmap(self._join, merges))
        if missing := (self.tokens | made) - vocab.keys():
            raise KeyError(min(missing))

    def _search(self, left: str, right: str, made: int) -> int:
        """Return the rank of a merge; if it is listed twice, the later one counts."""
        return self._rank_of_merge.get(left + _BETWEEN + right, self.none)


def _join_inside(size: int, left: str, right: str) -> str:
    """Return the token that two make where the right one loses its prefix of so many bytes.

    What cuts a character in two is no token: the reference drops bytes, not characters.
    """
    return left + right.encode()[size:].decode(errors="surrogateescape")
