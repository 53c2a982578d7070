"""Added tokens, against the tokenizers library: what matches, what is swallowed, what is left."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.texts import CHARACTERS
from tests.tokenizer.definitions import added, assert_encodes_alike, definition, ours, reference

FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
)
# One spelling of é alone: which of two that normalise alike should win is nobody's contract.
CONTENTS = st.lists(
    st.sampled_from(["<a>", "<a", "a>", "<a><a>", "ab", "b", " b", "b ", "e\u0301", "\n"]),
    unique=True,
    max_size=5,
)
NORMALIZERS = st.sampled_from([None, {"type": "NFC"}, {"type": "NFKD"}])


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    file = definition(("a", "b"), normalizer=draw(NORMALIZERS))
    vocab = file["model"]["vocab"]
    for content in draw(CONTENTS):
        new_id = len(vocab) + sum(t["content"] not in vocab for t in file["added_tokens"])
        token = added(content, vocab.get(content, new_id), **draw(FLAGS))
        file["added_tokens"].append(token)
    return file


TEXTS = st.lists(
    st.sampled_from(
        ["<a>", "<", "a", ">", "b", " ", "  ", "\n", "\u2003", "é", "e", "\u0301", "_"]
    ),
    max_size=14,
).map("".join)


def test_a_token_that_the_one_before_has_swallowed_is_no_token() -> None:
    """An empty match between two line ends once gave a third id and an index error."""
    file = definition(("a", "b"))
    new_id = len(file["model"]["vocab"])
    file["added_tokens"].append(added("\n", new_id, lstrip=True, rstrip=True))
    assert_encodes_alike(file, "a\n\nb")
    assert ours(file).encode("a\n\nb").count(new_id) == 1


@given(files(), TEXTS)
def test_every_flag_matches_as_in_the_reference(file: dict[str, Any], text: str) -> None:
    assert_encodes_alike(file, text)


@given(files(), st.lists(st.one_of(TEXTS, st.text(CHARACTERS, max_size=4)), max_size=4))
def test_added_tokens_decode_as_in_the_reference(file: dict[str, Any], parts: list[str]) -> None:
    """A token outside the byte alphabet is its own text; one inside it is read as bytes."""
    expected, tokenizer = reference(file), ours(file)
    ids = expected.encode("".join(parts)).ids
    for skip in (False, True):
        assert tokenizer.decode(ids, skip) == expected.decode(ids, skip)


def test_words_and_spaces_are_the_references_for_every_character() -> None:
    """Beside `x` each character in turn: is it part of a word, is it white space to swallow?"""
    tokens = [
        added("<w>", 256, single_word=True),
        added("<l>", 257, lstrip=True),
        added("<r>", 258, rstrip=True),
    ]
    file = definition(added_tokens=tokens)
    tokenizer, expected = ours(file), reference(file)
    characters = [
        chr(c)
        for c in (*range(0x3400), *range(0x3400, sys.maxunicode, 61))
        if unicodedata.category(chr(c)) not in ("Cs", "Cn")
    ]
    differing = [
        c
        for c in characters
        for text in [f"<w>{c}<w>x{c}<l>x<r>{c}x"]
        if tokenizer.added(text) != expected.added(text)
    ]
    assert len(characters) > 15_000
    assert differing == []


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("plain", ["plain"]),
        ("<|a|><|a|>x", [256, 257]),
        ("<|a|", ["<|a|"]),
        ("p<|a|>q", ["p", 256, "q"]),
    ],
)
def test_the_longest_token_wins_and_nothing_is_lost(text: str, pieces: list[int | str]) -> None:
    file = definition(added_tokens=[added("<|a|>", 256), added("<|a|>x", 257)])
    assert ours(file).added(text) == pieces
