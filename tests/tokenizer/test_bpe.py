"""Merging, against a naive twin: the pair of lowest rank first, leftmost on ties."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.models.ranks import MergeRanks, Pair
from engine.tokenizer.word_cache import WordCache


def naive(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Merge one pair at a time, looking at all of them each time."""
    symbols = list(word)
    while True:
        ranked = [
            (merges.index(pair), i) for i, pair in enumerate(pairwise(symbols)) if pair in merges
        ]
        if not ranked:
            return symbols
        _, i = min(ranked)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges in any order, each of two tokens that the ones drawn before it can make."""
    tokens = ["a", "b", "c"]
    pairs: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 12))):
        pair = (draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens)))
        if pair not in pairs and len(pair[0] + pair[1]) < 9:
            pairs.append(pair)
            tokens.append(pair[0] + pair[1])
    return draw(st.permutations(pairs))


def model(merges: list[tuple[str, str]], ignore_merges: bool = False) -> BytePairModel:
    tokens = dict.fromkeys(["c", "b", "a", *sorted(left + right for left, right in merges)])
    return BytePairModel({token: i for i, token in enumerate(tokens)}, merges, ignore_merges)


def spelled(of: BytePairModel, word: str) -> list[str]:
    tokens = list(of.vocab)
    return [tokens[i] for i in of(word)]


@given(merge_lists(), st.text("abc", max_size=40))
def test_merges_as_the_naive_twin(merges: list[tuple[str, str]], word: str) -> None:
    assert spelled(model(merges), word) == naive(word, merges)


def test_a_character_without_a_token_leaves_no_trace() -> None:
    """The reference drops it; a 0 in its place would be a token that nobody wrote."""
    merges = [("a", "b")]
    assert spelled(model(merges), "axb") == ["ab"]


def test_whole_words_are_taken_only_if_the_file_says_so() -> None:
    merges = [("a", "b"), ("b", "c"), ("a", "bc")]
    assert spelled(model(merges), "abc") == ["ab", "c"]
    assert spelled(model(merges, ignore_merges=True), "abc") == ["abc"]


def test_a_merge_of_unknown_tokens_is_an_error() -> None:
    with pytest.raises(KeyError):
        BytePairModel({"a": 0, "b": 1}, [("a", "b")])


class Counting(MergeRanks):
    """Ranks that count how often they are asked."""

    asked = 0

    def __getitem__(self, pair: Pair) -> int:
        self.asked += 1
        return super().__getitem__(pair)


@pytest.mark.parametrize("unit", ["a", "ab", "abc"])
def test_a_long_word_takes_no_more_than_n_log_n(unit: str) -> None:
    """A merge loop that searches all pairs asks four times as often for twice the word.

    Questions are counted, since time depends on who else is computing; case B09 measures time.
    """
    merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("a", "b"), ("ab", "ab"), ("b", "c")]

    def asked(length: int) -> int:
        merging = model(merges)
        merging._rank_of = counting = Counting(merging.vocab, merges)
        merging(unit * (length // len(unit)))
        return counting.asked

    assert 0 < asked(20_000) / asked(10_000) < 2.2


def test_the_cache_stays_bounded_and_forgets_long_words() -> None:
    worked_out = []

    def work_out(word: str) -> str:
        worked_out.append(word)
        return word.upper()

    cache = WordCache(work_out)
    for i in range(WordCache.LIMIT + 10):
        assert cache[f"w{i}"] == f"W{i}"
        assert len(cache) <= WordCache.LIMIT
    long = "x" * (WordCache.LONGEST + 1)
    assert cache[long] == cache[long] == long.upper()
    assert worked_out.count(long) == 2
    assert worked_out.count("w5") == 1
