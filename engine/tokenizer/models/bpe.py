"""Byte-pair encoding: merges the symbols of one word, lowest merge rank first, leftmost on ties.

Source: Sennrich et al. 2016, section 3.2. One heap of candidate pairs whose stale entries are
dropped when they come up makes a long word of n symbols cost n log n.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, pairwise, repeat
from typing import NamedTuple

from engine.tokenizer.models.characters import DROPPED, Characters, Unknown, byte_token
from engine.tokenizer.models.cuts import Cuts
from engine.tokenizer.models.model import Part
from engine.tokenizer.models.ranks import MergeRanks, Ranks, TokenRanks
from engine.tokenizer.word_cache import WordCache

_BYTE_TOKENS = frozenset(map(byte_token, range(256)))


class Merge(NamedTuple):
    """The symbols `at` and `at` + 1 of a piece became the token `made`, as their pair's rank is lowest."""

    at: int
    rank: int
    made: int


class Merging(NamedTuple):
    """How a piece of a word became tokens: the symbols it began with, and its merges in their order.

    None stands for merges that are too many to watch.
    """

    text: str
    symbols: list[int]
    merges: list[Merge] | None


class BytePairModel:
    """Turns one word, spelled in the alphabet of the vocabulary, into token ids.

    With `ignore_merges` a word that is itself a token is taken whole. `prefix` marks the tokens
    inside a word, `suffix` those at its end. Where the whole text is one word, it is cut into
    pieces first, and what was worked out for a piece is kept.
    """

    #: A word of up to so many characters is not cut: whoever asks keeps the results by word.
    SHORT = 32
    #: A piece between two spaces of up to so many characters is merged as it is: to find all the
    #: places to cut at is work that only a text without spaces repays.
    LONG = 256
    #: Up to so many symbols it takes longer to keep a heap than to look at all pairs each time.
    FEW = 32
    #: Of so many symbols the merges can be watched.
    WATCHED = 512

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Iterable[Sequence[str]] | TokenRanks,
        ignore_merges: bool = False,
        unknown: Unknown = DROPPED,
        prefix: str = "",
        suffix: str = "",
    ) -> None:
        """Take merges in rank order, or the ranks of tokens.

        Raise KeyError if one names a token that the vocabulary lacks, ValueError if it does not
        fit the prefix.
        """
        self.vocab = vocab
        self._ignore_merges = ignore_merges
        self._unknown = unknown
        self._characters = Characters(vocab, unknown, prefix, suffix)
        self._ranks: Ranks = (
            merges if isinstance(merges, TokenRanks) else MergeRanks(vocab, merges, prefix)
        )
        self._token_of = dict(zip(vocab.values(), vocab, strict=True))
        self._piece_ids = WordCache(self._ids_of_piece)

    def __call__(self, word: str) -> list[int]:
        """Return the ids of one word."""
        if self._is_taken_whole(word):
            return [self.vocab[word]]
        cuts = self._cuts if len(word) > self.SHORT else None
        if cuts is None or (self._drops_unknown and not self.vocab.keys() >= set(word)):
            return self._merged(word)
        pieces = cuts.at_spaces(word)
        return list(chain.from_iterable(map(self._piece_ids.__getitem__, pieces)))

    def parts(self, word: str) -> list[Part]:
        """Return the same tokens with what each one stands for.

        A character that leaves no trace counts for nothing, and what follows counts on from there.
        """
        if self._is_taken_whole(word):
            return [Part(self.vocab[word], word, 0, len(word.encode()))]
        symbols = self._characters.symbols(word)
        merged = self._merge([token_id for token_id, _ in symbols])
        starts = accumulate((size for _, size in symbols), initial=0)
        begun = [(i, start) for i, start in zip(merged, starts, strict=False) if i is not None]
        begun.append((-1, sum(size for _, size in symbols)))
        token_of = self._token_of
        return [Part(i, token_of[i], start, end) for (i, start), (_, end) in pairwise(begun)]

    def merging(self, word: str) -> list[Merging]:
        """Return how one word becomes its tokens: by the pieces that are merged alone.

        It looks at all pairs before each merge, which is for words that somebody wants to watch.
        """
        if self._is_taken_whole(word):
            return [Merging(word, [self.vocab[word]], [])]
        cuts = self._cuts if len(word) > self.SHORT else None
        if cuts is None or (self._drops_unknown and not self.vocab.keys() >= set(word)):
            pieces = [word]
        else:
            pieces = cuts.at_spaces(word)
        return [self._merging(piece, self._characters.ids(piece)) for piece in pieces]

    def _merging(self, piece: str, symbols: list[int]) -> Merging:
        if len(symbols) > self.WATCHED:
            return Merging(piece, symbols, None)
        rank_of, none = self._ranks.rank_of, self._ranks.none
        ids, merges = list(symbols), list[Merge]()
        while ranks := [rank_of(pair, none) for pair in pairwise(ids)]:
            rank = min(ranks)
            if rank == none:
                break
            at = ranks.index(rank)
            made = self._ranks.made_of((ids[at], ids[at + 1]), rank)
            merges.append(Merge(at, rank, made))
            ids[at : at + 2] = [made]
        return Merging(piece, symbols, merges)

    def _is_taken_whole(self, word: str) -> bool:
        return self._ignore_merges and word in self.vocab

    @cached_property
    def _cuts(self) -> Cuts | None:
        """Where a word may be cut before merging, None if nowhere.

        That needs tokens spelled like the text they stand for: no prefix, no suffix, and no merge
        of what stands for an unknown character.
        """
        fallbacks = set(_BYTE_TOKENS if self._unknown.byte_fallback else ())
        if self._unknown.token is not None:
            fallbacks.add(self._unknown.token)
        ids = {self.vocab[token] for token in fallbacks & self.vocab.keys()}
        if not self._characters.plain or self._ranks.merges_any(ids):
            return None
        return Cuts(self.vocab)

    @cached_property
    def _drops_unknown(self) -> bool:
        """Whether a character can leave no trace, so that its neighbours become one another's."""
        every_byte = self._unknown.byte_fallback and self.vocab.keys() >= _BYTE_TOKENS
        return self._unknown.token is None and not every_byte

    def _ids_of_piece(self, piece: str) -> tuple[int, ...]:
        assert self._cuts is not None
        finer = self._cuts.everywhere(piece) if len(piece) > self.LONG else [piece]
        if len(finer) == 1:
            return tuple(self._merged(piece))
        return tuple(chain.from_iterable(map(self._piece_ids.__getitem__, finer)))

    def _merged(self, word: str) -> list[int]:
        ids = self._characters.ids(word)
        if len(ids) <= self.FEW:
            return self._merge_few(ids)
        return [token_id for token_id in self._merge(ids) if token_id is not None]

    def _merge_few(self, ids: list[int]) -> list[int]:
        """Merge as `_merge` does, by looking at all pairs each time."""
        rank_of, made_of, none = self._ranks.rank_of, self._ranks.made_of, self._ranks.none
        ranks = list(map(rank_of, pairwise(ids), repeat(none)))
        while ranks and (rank := min(ranks)) != none:
            i = ranks.index(rank)
            made = ids[i] = made_of((ids[i], ids[i + 1]), rank)
            del ids[i + 1], ranks[i]
            if i:
                ranks[i - 1] = rank_of((ids[i - 1], made), none)
            if i < len(ranks):
                ranks[i] = rank_of((made, ids[i + 1]), none)
        return ids

    def _merge(self, ids: list[int]) -> Sequence[int | None]:
        """Merge until no neighbouring pair has a rank; what was merged to its left is None."""
        size = len(ids)
        rank_of, made_of, none = self._ranks.rank_of, self._ranks.made_of, self._ranks.none
        # A candidate is rank * size + position: one integer that sorts by rank, then leftmost.
        ranks = map(rank_of, pairwise(ids), repeat(none))
        candidates = [rank * size + i for i, rank in enumerate(ranks) if rank != none]
        if not candidates:
            return ids
        heapify(candidates)
        # Symbols form a linked list; one that was merged into its left neighbour becomes None.
        # The None at the end stands for both borders (it is also index -1).
        symbols: list[int | None] = [*ids, None]
        before = list(range(-1, size))
        after = list(range(1, size + 1))
        while candidates:
            rank, i = divmod(heappop(candidates), size)
            j = after[i]
            pair = symbols[i], symbols[j]
            if rank_of(pair, none) != rank:
                continue
            symbols[i] = made_of(pair, rank)
            symbols[j] = None
            k = after[i] = after[j]
            before[k] = i
            for left, right in ((before[i], i), (i, k)):
                new_rank = rank_of((symbols[left], symbols[right]), none)
                if new_rank != none:
                    heappush(candidates, new_rank * size + left)
        return symbols[:-1]
