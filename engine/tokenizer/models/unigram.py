"""Unigram: of all ways to spell a word in tokens, the one whose scores add up highest.

Source: Kudo 2018, "Subword Regularization"; the tokenizers library 0.23 as a definition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from struct import Struct

from engine.errors import RequestError
from engine.tokenizer.models.characters import byte_tokens
from engine.tokenizer.models.model import Part
from engine.tokenizer.word_cache import WordCache

#: How much less than the lowest score of the vocabulary an unknown character counts.
UNKNOWN_PENALTY = 10.0

_SINGLE = Struct("f")
# SentencePiece counts from 0 again where a sum of single precision gets larger than this.
_LARGEST_SUM = 100_000.0


class UnigramModel:
    """Finds the best spelling of one word in time linear in its length (Viterbi 1967).

    Neighbouring unknown characters are taken together. They become the tokens of their bytes if
    `byte_fallback` is set and all of those are known, otherwise one unknown token. The tokens in
    `apart` stand for no text, whatever text spells them.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        scores: Sequence[float],
        unk_id: int | None = None,
        byte_fallback: bool = False,
        apart: frozenset[str] = frozenset(),
        single_precision: bool = False,
    ) -> None:
        """Take the score of each id; an `unk_id` must be one of them.

        With `single_precision` sums of scores are rounded as SentencePiece rounds them, which
        decides between spellings that are equally good.
        """
        self.vocab = vocab
        self._scores = scores
        self._unk_id = unk_id
        self._byte_fallback = byte_fallback
        self._apart = apart
        self._single_precision = single_precision
        open_scores = (scores[i] for token, i in vocab.items() if token not in apart)
        unknown_score = min(open_scores, default=0.0) - UNKNOWN_PENALTY
        self._unknown_score = _rounded(unknown_score) if single_precision else unknown_score
        self._known = WordCache(self._look_up)

    def __call__(self, word: str) -> list[int]:
        """Return the ids of one word; raise RequestError if a character has none."""
        return [part.id for part in self.parts(word)]

    def parts(self, word: str) -> list[Part]:
        """Return the same tokens with what each one stands for."""
        parts: list[Part] = []
        end = 0
        for piece in self._pieces(word):
            start, end = end, end + len(piece.encode())
            token_id = None if piece in self._apart else self.vocab.get(piece)
            tokens = None
            if token_id is None and self._byte_fallback:
                tokens = byte_tokens(piece, self.vocab)
            if tokens is not None:
                parts += [Part(self.vocab[token], token, start, end) for token in tokens]
            else:
                known = self._unknown(piece) if token_id is None else token_id
                parts.append(Part(known, piece, start, end))
        return parts

    def score(self, token_id: int) -> float:
        """Return what a token adds to the score of a spelling."""
        return self._scores[token_id]

    def _pieces(self, word: str) -> Iterator[str]:
        """Yield the best spelling, with unknown characters taken together."""
        waiting = None
        for start, end, token_id in self._best_path(word):
            if token_id == self._unk_id:
                waiting = start if waiting is None else waiting
                continue
            if waiting is not None:
                yield word[waiting:start]
                waiting = None
            yield word[start:end]
        if waiting is not None:
            yield word[waiting:]

    def _best_path(self, word: str) -> list[tuple[int, int, int]]:
        """Return the tokens of the best spelling as (start, end, id).

        Where two spellings of a beginning are equally good, the one whose last token is longer
        stays.
        """
        size = len(word)
        known, single = self._known, self._single_precision
        # For the text up to each place: the best score, and the last token with where it begins.
        best = [0.0] * (size + 1)
        begins = [-1] * (size + 1)
        ids = [0] * (size + 1)
        for start in range(size):
            before = best[start]
            if single and abs(before) > _LARGEST_SUM:
                for end in range(start, min(size, start + self._longest) + 1):
                    if begins[end] >= 0:
                        best[end] = _rounded(best[end] - before)
                before = 0.0
            alone = False
            for end in range(start + 1, size + 1):
                found = known[word[start:end]]
                if found is None:
                    break
                token_id, score = found
                if token_id < 0:
                    continue
                score = _rounded(before + score) if single else before + score
                if begins[end] < 0 or score > best[end]:
                    best[end], begins[end], ids[end] = score, start, token_id
                alone = alone or end == start + 1
            if not alone:
                score, end = before + self._unknown_score, start + 1
                score = _rounded(score) if single else score
                if begins[end] < 0 or score > best[end]:
                    best[end], begins[end], ids[end] = score, start, self._unknown(word[start])
        path = []
        end = size
        while end:
            path.append((begins[end], end, ids[end]))
            end = begins[end]
        return path[::-1]

    def _look_up(self, text: str) -> tuple[int, float] | None:
        """Return the id and score of a token, the id -1 where only longer tokens begin so.

        None stands for no token at all.
        """
        token_id = self.vocab.get(text)
        if token_id is not None and text not in self._apart:
            return token_id, self._scores[token_id]
        tokens = self._sorted_tokens
        i = bisect_left(tokens, text)
        return (-1, 0.0) if i < len(tokens) and tokens[i].startswith(text) else None

    @cached_property
    def _sorted_tokens(self) -> list[str]:
        return sorted(self.vocab)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.vocab), default=0)

    def _unknown(self, text: str) -> int:
        if self._unk_id is None:
            raise RequestError(
                f"the tokenizer has no token for {text!r:.60}: its file names no unk_id"
            )
        return self._unk_id


def _rounded(score: float) -> float:
    """Return the nearest number of single precision."""
    return float(_SINGLE.unpack(_SINGLE.pack(score))[0])
