"""How tokens come about, held against the ids that the tokenizer gives; and answers as they are streamed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.golden import REPOSITORY_GOLDENS
from conformance.strategies.texts import texts
from engine import Engine, SamplingParams, Tokenizer
from engine.generate.answer import AnswerText, Piece
from engine.inspect import inspected
from engine.inspect.words import Streamed, prompt_words, spellings
from engine.tokenizer.added import every_token
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.steps import Added, Word, alternatives, steps
from tests.engine.tiny import examples

#: Byte-level, SentencePiece in one word, a splitter of digits, Unigram, WordPiece, whole words.
GOLDENS = (
    "text-llama3",
    "text-llama2",
    "text-smollm2",
    "text-gemma",
    "text-unigram",
    "text-wordpiece",
    "text-words",
)
TOKENIZERS = {name: Tokenizer.load(REPOSITORY_GOLDENS / name) for name in GOLDENS}


def merged(word: Word) -> list[int]:
    """The tokens of a word whose merges are done one after the other, each where it is said to be."""
    ids: list[int] = []
    for piece in word.merging:
        symbols = list(piece.symbols)
        for at, _, made in piece.merges or ():
            symbols[at : at + 2] = [made]
        ids += symbols
    return ids


@given(st.sampled_from(GOLDENS), texts())
@examples(20)
def test_the_steps_end_in_the_tokens_that_the_tokenizer_gives(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    found = list(steps(tokenizer, text, every_token))
    ids: list[int] = []
    for each in found:
        if isinstance(each, Added):
            ids.append(each.id)
            continue
        if all(piece.merges is not None for piece in each.merging):
            assert each.merging == [] or merged(each) == [part.id for part in each.parts]
        else:
            assert max(len(piece.symbols) for piece in each.merging) > BytePairModel.WATCHED
        ids += [part.id for part in each.parts]
        assert bool(each.merging) == isinstance(tokenizer.model, BytePairModel)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    places = [(each.start, each.end) for each in found]
    assert places == sorted(places)
    assert all(0 <= start <= end <= len(text) for start, end in places)


def test_merges_come_by_rank_the_leftmost_first() -> None:
    """At each step no pair of neighbours has a lower rank, and none that is as low stands further left."""
    tokenizer = TOKENIZERS["text-llama3"]
    model = tokenizer.model
    assert isinstance(model, BytePairModel)
    ranks = model._ranks
    words = [
        w
        for w in steps(tokenizer, " transformers the 😀😀 there in the tokens", every_token)
        if isinstance(w, Word)
    ]
    seen = 0
    for piece in (piece for word in words for piece in word.merging):
        symbols = list(piece.symbols)
        for at, rank, made in piece.merges or ():
            pairs = list(pairwise(symbols))
            known = [ranks.rank_of(pair, ranks.none) for pair in pairs]
            assert rank == min(known)
            assert at == known.index(rank)
            assert made == ranks.made_of(pairs[at], rank)
            symbols[at : at + 2] = [made]
            seen += 1
    assert seen > 7


def test_a_word_names_the_alternative_that_cut_it() -> None:
    found = [
        w
        for w in steps(TOKENIZERS["text-smollm2"], "It's 42 ok\n\n x", every_token)
        if isinstance(w, Word)
    ]
    rules = {w.text: (w.rule.step, w.rule.alternative) for w in found if w.rule is not None}
    assert rules["It"] == (1, r" ?\p{L}+")
    assert rules["'s"] == (1, "'s")
    assert rules["4"] == rules["2"] == (0, r"\p{N}")
    assert all(w.rule is not None for w in found)


def test_a_text_that_is_one_word_is_cut_by_nothing() -> None:
    (word,) = steps(TOKENIZERS["text-llama2"], "all of it", every_token)
    assert isinstance(word, Word)
    assert word.rule is None
    assert [piece.text for piece in word.merging] == ["▁all▁of▁it"]


def test_pieces_of_a_long_word_are_those_that_are_merged_alone() -> None:
    tokenizer = TOKENIZERS["text-gemma"]
    text = "a long line of words without any end to it at all, says who " * 3
    (word,) = (w for w in steps(tokenizer, text, every_token) if isinstance(w, Word))
    assert len(word.merging) > 10
    assert "".join(piece.text for piece in word.merging) == word.text
    assert merged(word) == tokenizer.encode(text, add_special_tokens=False)


def test_merges_beyond_what_anybody_would_watch_are_left_out_in_words() -> None:
    (word,) = steps(TOKENIZERS["text-llama3"], "x" * 600, every_token)
    assert isinstance(word, Word)
    assert [(len(piece.symbols), piece.merges) for piece in word.merging] == [(600, None)]


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a|b", ["a", "b"]),
        (r"(?i:'s|'t)|[|)]|x\|y|\p{L}", ["(?i:'s|'t)", "[|)]", r"x\|y", r"\p{L}"]),
        ("abc", ["abc"]),
    ],
)
def test_alternatives_stand_between_bars_outside_of_groups(pattern: str, parts: list[str]) -> None:
    assert alternatives(pattern) == parts


def test_tokens_know_their_word_their_place_and_whether_they_are_special() -> None:
    tokenizer = TOKENIZERS["text-llama3"]
    text = "Hi<|end|> you"
    ids = tokenizer.encode_prompt(text, parse_special=True)
    found = prompt_words(tokenizer, text, ids, parse_special=True)
    assert found["tokens"][0]["word"] is None  # the BOS that the file's template adds
    for token in found["tokens"][1:]:
        word = found["words"][token["word"]]
        assert token["id"] in word["ids"]
        assert word["start"] <= token["start"] <= token["end"] <= word["end"]
    (special,) = (w for w in found["words"] if w["how"] == "added")
    assert special["text"] == "<|end|>"
    assert set(found["special"]) == {tokenizer.bos_id, special["ids"][0]}
    plain = prompt_words(tokenizer, text, tokenizer.encode_prompt(text), parse_special=False)
    assert all(w["how"] != "added" for w in plain["words"])
    assert plain["special"] == [tokenizer.bos_id]


def test_a_bos_that_is_written_is_not_shown_twice() -> None:
    tokenizer = TOKENIZERS["text-llama3"]
    text = "<|begin_of_text|>Hi"
    ids = tokenizer.encode_prompt(text, parse_special=True)
    found = prompt_words(tokenizer, text, ids, parse_special=True)
    assert [token["id"] for token in found["tokens"]] == ids
    assert found["tokens"][0]["word"] == 0


def test_scores_are_those_of_the_spelling() -> None:
    tokenizer = TOKENIZERS["text-unigram"]
    ids = tokenizer.encode_prompt("some text")
    words = prompt_words(tokenizer, "some text", ids, parse_special=False)["words"]
    assert all(len(word["scores"]) == len(word["ids"]) for word in words)
    assert {word["how"] for word in words} == {"scored"}


def test_a_token_is_spelled_as_in_the_file_and_as_bytes() -> None:
    tokenizer = TOKENIZERS["text-llama3"]
    (token,) = tokenizer.encode(" ", add_special_tokens=False)
    found = spellings(tokenizer, [token, 10**6])
    assert found[token] == {"spelled": "Ġ", "text": " ", "bytes": "20"}
    assert found[10**6] == {"spelled": None, "text": None, "bytes": None}


# -- the answer ------------------------------------------------------------------------------------


def streamed(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> list[dict[str, Any]]:
    """As a request does it: the answer's own text says what is out."""
    text = AnswerText(tokenizer.stream(), stops)
    rows = Streamed(tokenizer.stream())
    for n, token in enumerate(ids, 1):
        out = text.push(token)
        last = n == len(ids) or text.stopped
        out += text.finish() if last else ""
        rows.push(Piece(out, (token,), "stop" if last else None), ended=False)
        if last:
            break
    return rows.rows


def test_half_a_character_is_held_back() -> None:
    tokenizer = TOKENIZERS["text-llama3"]
    ids = tokenizer.encode("a😀", add_special_tokens=False)
    rows = streamed(tokenizer, ids, ())
    assert [row["certain"] for row in rows] == ["a", "", "", "😀"]
    assert [row["out"] for row in rows] == ["a", "", "", "😀"]
    assert [row["held"] for row in rows] == [0] * 4


def test_what_a_stop_string_may_begin_with_is_held_back() -> None:
    tokenizer = TOKENIZERS["text-llama3"]
    ids = [tokenizer.encode(c, add_special_tokens=False)[0] for c in "x<<y<<|z"]
    rows = streamed(tokenizer, ids, ("<<|",))
    assert [(row["certain"], row["out"], row["held"]) for row in rows] == [
        ("x", "x", 0),
        ("<", "", 1),
        ("<", "", 2),
        ("y", "<<y", 0),
        ("<", "", 1),
        ("<", "", 2),
        ("|", "", 3),
    ]
    assert rows[-1]["finish"] == "stop"


def test_ids_alone_have_no_history(engine: Engine, tmp_path: Path) -> None:
    found = inspected(engine, [1, 2, 3], SamplingParams(max_tokens=2))["prompt"]
    assert (found["text"], found["words"]) == (None, [])
    assert [token["word"] for token in found["tokens"]] == [None] * 3
