"""Byte-pair encoding: merges the symbols of one word, lowest merge rank first, leftmost on ties.

Source: Sennrich et al. 2016, section 3.2. One heap of candidate pairs whose stale entries are
dropped when they come up makes a word of n symbols cost n log n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise

from engine.tokenizer.models.model import Part


class BytePairModel:
    """Turns one word, spelled in the alphabet of the vocabulary, into token ids.

    `merges` are in rank order. With `ignore_merges` a word that is itself a token is taken whole.
    A character without a token leaves no trace, as in the reference; vocabularies that hold the
    whole byte alphabet have none.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        ignore_merges: bool = False,
    ) -> None:
        """Raise KeyError if a merge names a token that the vocabulary lacks."""
        self.vocab = vocab
        self._token_of = {token_id: token for token, token_id in vocab.items()}
        self._ignore_merges = ignore_merges
        self._rank_of: dict[tuple[int | None, int | None], int] = {}
        self._merged: list[int] = []
        for rank, (left, right) in enumerate(merges):
            self._rank_of[vocab[left], vocab[right]] = rank
            self._merged.append(vocab[left + right])

    def __call__(self, word: str) -> list[int]:
        """Return the ids of one word."""
        if self._ignore_merges and word in self.vocab:
            return [self.vocab[word]]
        ids = [self.vocab.get(character) for character in word]
        merged = self._merge([token_id for token_id in ids if token_id is not None])
        return [token_id for token_id in merged if token_id is not None]

    def parts(self, word: str) -> list[Part]:
        """Return the same tokens with what each one stands for.

        A character without a token counts for nothing, and what follows it counts on from there.
        """
        if self._ignore_merges and word in self.vocab:
            return [Part(self.vocab[word], word, 0, len(word.encode()))]
        known = [(self.vocab[c], len(c.encode())) for c in word if c in self.vocab]
        merged = self._merge([token_id for token_id, _ in known])
        starts = accumulate((size for _, size in known), initial=0)
        begun = [(i, start) for i, start in zip(merged, starts, strict=False) if i is not None]
        begun.append((-1, sum(size for _, size in known)))
        return [Part(i, self._token_of[i], start, end) for (i, start), (_, end) in pairwise(begun)]

    def _merge(self, ids: list[int]) -> Sequence[int | None]:
        """Merge until no neighbouring pair has a rank; what was merged to its left is None."""
        size = len(ids)
        rank_of = self._rank_of
        # A candidate is rank * size + position: one integer that sorts by rank, then leftmost.
        candidates = [
            rank_of[pair] * size + i for i, pair in enumerate(pairwise(ids)) if pair in rank_of
        ]
        if not candidates:
            return ids
        heapify(candidates)
        # Symbols form a linked list; one that was merged into its left neighbour becomes None.
        # The None at the end stands for both borders (it is also index -1). No pair with a None
        # has a rank.
        symbols: list[int | None] = [*ids, None]
        before = list(range(-1, size))
        after = list(range(1, size + 1))
        while candidates:
            rank, i = divmod(heappop(candidates), size)
            j = after[i]
            if rank_of.get((symbols[i], symbols[j])) != rank:
                continue
            symbols[i] = self._merged[rank]
            symbols[j] = None
            k = after[i] = after[j]
            before[k] = i
            for left, right in ((before[i], i), (i, k)):
                new_rank = rank_of.get((symbols[left], symbols[right]))
                if new_rank is not None:
                    heappush(candidates, new_rank * size + left)
        return symbols[:-1]
