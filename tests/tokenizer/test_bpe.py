"""Merging, against a naive twin: the pair of lowest rank first, leftmost on ties."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.models.characters import Unknown
from engine.tokenizer.models.ranks import MergeRanks, Met, Pair, TokenRanks
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


@given(merge_lists(), st.text("abc", max_size=40), st.sampled_from([1, 5]))
def test_merges_as_the_naive_twin(merges: list[tuple[str, str]], word: str, times: int) -> None:
    """A few symbols are merged without a heap, many with one, and one that wants parts always so."""
    of = model(merges)
    expected = naive(word * times, merges)
    assert spelled(of, word * times) == expected
    assert [part.token for part in of.parts(word * times)] == expected


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


def test_a_pair_listed_twice_has_its_later_rank() -> None:
    merges = [("a", "b"), ("b", "c"), ("a", "b")]
    assert spelled(model(merges), "abc") == ["a", "bc"]


def test_ranks_are_those_of_the_list_whatever_the_order_of_the_ids() -> None:
    """Merges that make the same token stand side by side, in no order of ranks among others."""
    merges = [("a", "bc"), ("b", "c"), ("a", "b"), ("ab", "c")]
    for order in permutations(merges):
        assert spelled(model(list(order)), "abcab") == naive("abcab", list(order))


def test_what_was_found_out_about_pairs_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Met, "LIMIT", 2)
    merges = [("a", "b"), ("c", "ab"), ("cab", "c")]
    vocab = {token: i for i, token in enumerate(["a", "b", "c", "ab", "cab", "cabc"])}
    ranks = TokenRanks(vocab, {**dict.fromkeys("abc", 0), "ab": 1, "cab": 2, "cabc": 3})
    word = "cabcbcab" * 10
    assert spelled(BytePairModel(vocab, ranks), word) == naive(word, merges)
    assert len(ranks.met) <= 2


SPACED = {
    token: i for i, token in enumerate(["▁", "a", "b", "▁a", "ab", "▁ab", "<unk>", ">", ">▁"])
}
SPACED_MERGES = [(">", "▁"), ("a", "b"), ("▁", "ab"), ("▁", "a")]


def test_a_long_text_is_cut_at_spaces_and_its_pieces_are_remembered() -> None:
    of = BytePairModel(SPACED, SPACED_MERGES)
    text = "▁ab▁a▁ba" * 20
    assert [part.id for part in of.parts(text)] == of(text)
    assert set(of._piece_ids) == {"▁ab", "▁a", "▁ba"}


def test_a_long_piece_is_cut_wherever_no_token_reaches_across() -> None:
    """Chinese has no spaces: a whole text is one piece."""
    of = BytePairModel(SPACED, SPACED_MERGES)
    text = "ab" + "ba" * BytePairModel.LONG
    assert [part.id for part in of.parts(text)] == of(text)
    assert set(of._piece_ids) - {text} == {"ab", "b", "a"}


def test_no_cut_stands_where_a_token_joins_a_character_to_a_space() -> None:
    """Gemma-3 has such a token."""
    of = BytePairModel(SPACED, SPACED_MERGES)
    text = "▁ab>▁ab" * 20
    assert [part.id for part in of.parts(text)] == of(text)
    assert SPACED[">▁"] in of(text)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("token", ["<unk>", None])
def test_cuts_change_nothing_about_unknown_characters(token: str | None, fuse: bool) -> None:
    """Fused they are one token across a cut; dropped, they let their neighbours meet."""
    of = BytePairModel(SPACED, SPACED_MERGES, unknown=Unknown(token, fuse))
    for text in ("▁abé▁a", "aéb", "▁é▁ab", "éè▁éb", ">é▁a"):
        assert [part.id for part in of.parts(text * 20)] == of(text * 20)


def test_a_space_that_is_no_token_joins_the_unknown_characters_beside_it() -> None:
    of = BytePairModel({"a": 0, "<unk>": 1}, [], unknown=Unknown("<unk>", fuse=True))
    assert of("aé▁a" * 20) == [0, 1, 0] * 20


def test_a_merge_of_the_unknown_token_forbids_cuts() -> None:
    of = BytePairModel(
        {**SPACED, "<unk>▁": 9}, [*SPACED_MERGES, ("<unk>", "▁")], unknown=Unknown("<unk>")
    )
    assert of("é▁" * 20) == [9] * 20


def test_bytes_come_before_an_unknown_token_that_waits_for_its_neighbour() -> None:
    """As in the reference, which keeps the unknown token back until a known character comes."""
    vocab = {"a": 0, "<unk>": 1, "<0xC3>": 2, "<0xA9>": 3}
    of = BytePairModel(vocab, [], unknown=Unknown("<unk>", fuse=True, byte_fallback=True))
    assert of.parts("東éa") == [
        (2, "<0xC3>", 0, 1),
        (3, "<0xA9>", 1, 2),
        (1, "<unk>", 2, 5),
        (0, "a", 5, 6),
    ]


def test_an_unknown_token_that_is_no_token_is_an_error_when_it_is_needed() -> None:
    """GPT-2's file names one that stands among the added tokens alone."""
    of = BytePairModel({"a": 0}, [], unknown=Unknown("<unk>"))
    assert of("aa") == [0, 0]
    with pytest.raises(RequestError, match="no token for 'é'"):
        of("aé")


def test_a_prefix_stands_inside_and_a_suffix_at_the_end_of_a_word() -> None:
    vocab = {token: i for i, token in enumerate(["a", "##b", "##b.", "ab", "ab.", "a."])}
    of = BytePairModel(vocab, [("a", "##b"), ("a", "##b.")], prefix="##", suffix=".")
    assert of("a") == [5]
    assert of("ab") == [4]
    assert of.parts("abb") == [(3, "ab", 0, 2), (2, "##b.", 2, 3)]
    with pytest.raises(ValueError, match="shorter"):
        BytePairModel({"a": 0, "aa": 1}, [("a", "a")], prefix="##")


class Counting:
    """Ranks that count how often they are asked."""

    def __init__(self, ranks: MergeRanks) -> None:
        self._rank_of, self.asked = ranks.rank_of, 0

    def __call__(self, pair: Pair, none: int) -> int:
        self.asked += 1
        return self._rank_of(pair, none)


@pytest.mark.parametrize("unit", ["a", "ab", "abc"])
def test_a_long_word_takes_no_more_than_n_log_n(unit: str) -> None:
    """A merge loop that searches all pairs asks four times as often for twice the word.

    Questions are counted, since time depends on who else is computing; case B09 measures time.
    """
    merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("a", "b"), ("ab", "ab"), ("b", "c")]

    def asked(length: int) -> int:
        merging = model(merges)
        ranks = merging._ranks
        assert isinstance(ranks, MergeRanks)
        ranks.rank_of = counting = Counting(ranks)
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
