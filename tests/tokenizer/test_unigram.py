"""Unigram, against a naive twin: of all spellings the one whose scores add up highest."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.tokenizer.models.unigram import UNKNOWN_PENALTY, UnigramModel
from engine.tokenizer.word_cache import WordCache


def model(scores: dict[str, float], byte_fallback: bool = False) -> UnigramModel:
    """The unknown token is the first one."""
    vocab = {token: i for i, token in enumerate(scores)}
    return UnigramModel(vocab, list(scores.values()), 0, byte_fallback)


def spelled(of: UnigramModel, word: str) -> list[str]:
    return [part.token for part in of.parts(word)]


def naive(scores: dict[str, float], word: str) -> list[str]:
    """Try every spelling of a word in which each character is known."""

    @cache
    def spellings(start: int) -> list[tuple[str, ...]]:
        if start == len(word):
            return [()]
        return [
            (token, *rest)
            for end in range(start + 1, len(word) + 1)
            if (token := word[start:end]) in scores
            for rest in spellings(end)
        ]

    return list(max(spellings(0), key=lambda tokens: sum(scores[token] for token in tokens)))


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(-1000, -1), max_size=12),
    st.text("abc", min_size=1, max_size=9),
)
def test_takes_the_best_of_all_spellings(found: dict[str, int], word: str) -> None:
    scores = {"<unk>": 0.0, **dict.fromkeys("abc", -999.0), **found}
    best = spelled(model(scores), word)
    assert "".join(best) == word
    assert sum(scores[t] for t in best) == sum(scores[t] for t in naive(scores, word))


def test_of_equally_good_spellings_the_longest_last_token_stays() -> None:
    """It is met first; a comparison that takes equals would take the last one met."""
    scores = {"<unk>": 0.0, "a": -1.0, "b": -1.0, "c": -1.0, "ab": -2.0, "bc": -2.0, "abc": -3.0}
    assert spelled(model(scores), "abc") == ["abc"]
    del scores["abc"]
    assert spelled(model(scores), "abc") == ["a", "bc"]


def test_an_unknown_character_costs_ten_more_than_the_worst_token() -> None:
    """So a spelling with one unknown character less wins up to that difference."""
    assert UNKNOWN_PENALTY == 10
    scores = {"<unk>": 0.0, "x": -5.0, "a": 10.5, "ab": -4.4}
    assert spelled(model(scores), "ab") == ["ab"]
    assert spelled(model({**scores, "ab": -4.6}), "ab") == ["a", "b"]


def test_neighbouring_unknown_characters_are_one_token() -> None:
    found = model({"<unk>": 0.0, "a": -1.0}).parts("é東a😀")
    assert found == [(0, "é東", 0, 5), (1, "a", 5, 6), (0, "😀", 6, 10)]


def test_the_unknown_token_spelled_out_joins_its_neighbours() -> None:
    assert spelled(model({"<unk>": 0.0, "a": -1.0}), "a<unk>é") == ["a", "<unk>é"]


def test_unknown_characters_together_may_spell_a_token() -> None:
    """Its score is worse than two unknown characters, so no spelling took it."""
    assert model({"<unk>": 0.0, "a": -1.0, "xy": -100_000.0, "z": -1.0})("axy") == [1, 2]


def test_with_byte_fallback_an_unknown_run_becomes_its_bytes_if_all_are_known() -> None:
    scores = {"<unk>": 0.0, "a": -1.0, "<0xC3>": 0.0, "<0xA9>": 0.0}
    assert model(scores, byte_fallback=True).parts("aé") == [
        (1, "a", 0, 1),
        (2, "<0xC3>", 1, 3),
        (3, "<0xA9>", 1, 3),
    ]
    assert model(scores, byte_fallback=True).parts("éè") == [(0, "éè", 0, 4)]
    assert model(scores).parts("é") == [(0, "é", 0, 2)]


def test_without_an_unknown_token_an_unknown_character_is_the_requests_fault() -> None:
    known_only = UnigramModel({"a": 0}, [-1.0])
    assert known_only("aa") == [0, 0]
    with pytest.raises(RequestError, match="no token for 'b'"):
        known_only("ab")
    with pytest.raises(RequestError, match="no token for 'a'"):
        UnigramModel({}, [])("a")


class Counting(WordCache[tuple[int, float] | None]):
    """Counts how many beginnings of tokens are looked up."""

    asked = 0

    def __getitem__(self, text: str) -> tuple[int, float] | None:
        self.asked += 1
        return super().__getitem__(text)


@pytest.mark.parametrize("unit", ["a", "ab", "é", "aaab"])
def test_a_long_word_takes_linear_time(unit: str) -> None:
    """What is looked up is counted, since time depends on who else is computing."""

    def asked(length: int) -> int:
        of = model({"<unk>": 0.0, "a": -1.0, "aaaa": -2.0, "ab": -3.0})
        of._known = counting = Counting(of._look_up)
        of(unit * (length // len(unit)))
        return counting.asked

    assert 0 < asked(2_000) < 2.1 * asked(1_000)
