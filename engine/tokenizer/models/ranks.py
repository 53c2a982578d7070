"""The merges of a vocabulary: which pairs of tokens merge, in which order, and into what.

A table of all pairs would take longer to build than the whole file takes to read, and one text
meets few of them. So the merges are kept in order of the token that they make, and the rank of a
pair is searched among those that make its token when the pair is first met.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain

#: Two neighbouring ids; None is the border of a word, which never merges.
Pair = tuple[int | None, int | None]


class Ranks(dict[Pair, int]):
    """The rank of each pair of ids met lately; `none` for a pair that does not merge.

    `made[rank]` is the id of the token that a merge makes. With a `prefix`, which marks tokens
    inside a word, the right side of a merge loses as many bytes as that has.
    """

    LIMIT = 1 << 18

    def __init__(
        self, vocab: Mapping[str, int], merges: Sequence[Sequence[str]], prefix: str = ""
    ) -> None:
        """Take merges in rank order.

        Raise KeyError if one names a token that the vocabulary lacks, ValueError if a right side
        is too short for the prefix.
        """
        super().__init__()
        self._vocab = vocab
        self._merges = merges
        self._prefix_size = len(prefix.encode())
        self.tokens = frozenset(chain.from_iterable(self._merges))
        """Every token that can be merged."""
        if not vocab.keys() >= self.tokens:
            raise KeyError(min(self.tokens - vocab.keys()))
        if any(len(right.encode()) < self._prefix_size for _, right in merges if prefix):
            raise ValueError(f"the right side of a merge is shorter than the prefix {prefix!r}")
        joined = map("".join, self._merges) if not prefix else map(self._joined, self._merges)
        self.made = list(map(vocab.__getitem__, joined))
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
        rank = self[pair] = self._search(self.token_of[left], self.token_of[right])
        return rank

    def _search(self, left: str, right: str) -> int:
        """Return the rank of two tokens; if the merge is listed twice, the later one counts."""
        rank = self.none
        made = self._vocab.get(self._joined((left, right)))
        if made is not None:
            for i in range(bisect_left(self._made_in_order, made), self.none):
                if self._made_in_order[i] != made:
                    break
                if (*self._merges[self._in_order[i]],) == (left, right):
                    rank = self._in_order[i]
        return rank

    def _joined(self, merge: Sequence[str]) -> str:
        left, right = merge
        if not self._prefix_size:
            return left + right
        # What cuts a character in two is no token: the reference drops bytes, not characters.
        return left + right.encode()[self._prefix_size :].decode(errors="surrogateescape")
