"""WordPiece takes the longest token from the left; WordLevel takes words whole."""

from __future__ import annotations

import pytest

from engine.errors import RequestError
from engine.tokenizer.models.words import WordLevelModel, WordPieceModel

VOCAB = {token: i for i, token in enumerate(["[UNK]", "un", "u", "##aff", "##able", "##a", "é"])}


def word_piece(longest: int = 100, **vocab: int) -> WordPieceModel:
    return WordPieceModel({**VOCAB, **vocab}, "[UNK]", longest=longest)


def test_word_piece_takes_the_longest_token_each_time() -> None:
    assert word_piece().parts("unaffable") == [
        (1, "un", 0, 2),
        (3, "##aff", 2, 5),
        (4, "##able", 5, 9),
    ]


def test_word_piece_does_not_turn_back() -> None:
    """A longer token at the front that leads nowhere makes the whole word unknown."""
    assert word_piece(unaff=7)("unaffable") == [7, 4]
    assert word_piece(unaffa=8)("unaffable") == [0]


def test_a_word_that_cannot_be_spelled_is_one_unknown_token() -> None:
    assert word_piece().parts("unéa") == [(0, "[UNK]", 0, 5)]
    assert word_piece().parts("aff") == [(0, "[UNK]", 0, 3)]


def test_a_token_inside_a_word_carries_the_prefix_and_one_at_its_start_does_not() -> None:
    assert word_piece()("uun") == [0]
    assert word_piece()("##able") == [4]


def test_a_word_of_too_many_characters_is_unknown() -> None:
    assert word_piece(longest=3)("uaa") == [2, 5, 5]
    assert word_piece(longest=3)("uaaa") == [0]
    assert word_piece(longest=1)("é") == [6]


def test_word_piece_looks_no_further_than_its_longest_token() -> None:
    """A file may allow words of any length; all their prefixes would be quadratic work."""
    looked_up = 0

    class Counting(dict[str, int]):
        def __contains__(self, token: object) -> bool:
            nonlocal looked_up
            looked_up += 1
            return super().__contains__(token)

    word = "u" + "a" * 10_000
    assert len(WordPieceModel(Counting(VOCAB), "[UNK]", longest=1 << 40)(word)) == len(word)
    assert looked_up < 10 * len(word)


def test_word_level_takes_words_whole() -> None:
    whole = WordLevelModel({"[UNK]": 0, "un": 1}, "[UNK]")
    assert whole.parts("un") == [(1, "un", 0, 2)]
    assert whole.parts("uné") == [(0, "[UNK]", 0, 4)]


def test_without_an_unknown_token_an_unknown_word_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="no token for 'b'"):
        WordLevelModel({"a": 0}, "[UNK]")("b")
    with pytest.raises(RequestError, match="no token for 'b'"):
        WordPieceModel({"a": 0}, "[UNK]")("b")
