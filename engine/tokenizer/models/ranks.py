"""The merges of a vocabulary: which pairs of tokens merge, in which order, and into what.

A tokenizer.json lists pairs, and their place is their rank: `MergeRanks`. SentencePiece and
tiktoken rank tokens, and a pair has the rank of the token that it makes: `TokenRanks`.

A table of all pairs would take longer to build than the whole file takes to read, and one text
meets few of them. So the merges are kept in order of the token that they make, and the rank of a
pair is searched among those that make its token when the pair is first met.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from itertools import chain

#: Two neighbouring ids; None is the border of a word, which never merges.
Pair = tuple[int | None, int | None]


class Ranks(dict[Pair, int]):
    """The rank of each pair of ids met lately; `none` for a pair that does not merge.

    `made` holds the id of the token that such a pair makes, once its rank was asked for.
    """

    LIMIT = 1 << 18

    def __init__(
        self, vocab: Mapping[str, int], merges: Iterable[Sequence[str]], prefix: str = ""
    ) -> None:
        """Take merges in rank order.

        Raise KeyError if one names a token that the vocabulary lacks, ValueError if a right side
        is too short for the prefix.
        """
        super().__init__()
        self._vocab = vocab
        self._prefix = prefix
        # One list of strings: pairs would keep the garbage collector busy.
        tokens = list(chain.from_iterable(merges))
        self._lefts, self._rights = tokens[::2], tokens[1::2]
        self.tokens = frozenset(tokens)
        """Every token that can be merged."""
        if not vocab.keys() >= self.tokens:
            raise KeyError(min(self.tokens - vocab.keys()))
        if prefix and any(map(self._is_short, self._rights)):
            raise ValueError(f"the right side of a merge is shorter than the prefix {prefix!r}")
        join = self._join if prefix else add
        self.made = list(map(vocab.__getitem__, map(join, self._lefts, self._rights)))
        """The id of the token that the merge of each rank makes."""
        self.none = len(self.made)
        self.token_of = dict(zip(vocab.values(), vocab, strict=True))
        """The spelling of each id."""
        # Most files list the merges in the order of their tokens' ids, so that this costs little.
        self._in_order = sorted(range(self.none), key=self.made.__getitem__)
        self._made_in_order = sorted(self.made)

    def __missing__(self, pair: Pair) -> int:
        left, right = pair
        if left is None or right is None:
            return self.none
        if len(self) >= self.LIMIT:
            self.clear()
            self.made.clear()
        rank, made = self._search(self.token_of[left], self.token_of[right])
        self[pair] = rank
        if made is not None:
            self.made[pair] = made
        return rank

    @abstractmethod
    def _search(self, left: str, right: str) -> int:
        """Return the rank of two tokens; if the merge is listed twice, the later one counts."""
        rank = self.none
        made = self._vocab.get(self._join(left, right))
        if made is not None:
            for i in range(bisect_left(self._made_in_order, made), self.none):
                if self._made_in_order[i] != made:
                    break
                candidate = self._in_order[i]
                if self._lefts[candidate] == left and self._rights[candidate] == right:
                    rank = candidate
        return rank

    def _join(self, left: str, right: str) -> str:
        if not self._prefix:
            return left + right
        # What cuts a character in two is no token: the reference drops bytes, not characters.
        inner = right.encode()[len(self._prefix.encode()) :]
        return left + inner.decode(errors="surrogateescape")

    def _is_short(self, right: str) -> bool:
        return len(right.encode()) < len(self._prefix.encode())
