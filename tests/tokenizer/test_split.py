"""Splitting, against the tokenizers library: every behaviour, inverted or not, and digits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.texts import CHARACTERS, SCRIPTS, SPACES
from engine.tokenizer.split.pattern import BEHAVIORS, Split
from tests.tokenizer.definitions import (
    BYTE_LEVEL,
    BYTES_ONLY,
    assert_encodes_alike,
    definition,
    ours,
    reference,
)

MERGES = (("Ġ", "a"), ("a", "b"), ("Ġ", "Ġ"), ("Ã", "©"), ("1", "2"))
TEXTS = st.lists(
    st.one_of(
        st.text(CHARACTERS, max_size=3),
        SPACES,
        SCRIPTS,
        st.sampled_from(["a", "b", " ", "  ", "12", "x1", "é", "²", "\n", "--", "'s", ""]),
    ),
    max_size=8,
).map("".join)
PATTERNS = [
    {"Regex": r"\s+"},
    {"Regex": r"\p{N}{1,2}"},
    {"Regex": r"(a)|(b+)"},
    {"Regex": r"[^\s]+|^\s"},
    {"Regex": r"x*"},
    {"Regex": r"(?=b)"},
    {"String": " "},
    {"String": "--"},
    {"String": "."},
]


def split(pattern: dict[str, str], behavior: str, invert: bool) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def assert_splits_alike(pre_tokenizer: dict[str, Any], text: str) -> None:
    file = definition(*MERGES, pre_tokenizer=pre_tokenizer)
    tokenizer, expected = ours(file), reference(file)
    assert tokenizer.splitter(text) == expected.split(text)
    assert_encodes_alike(file, text)


@pytest.mark.parametrize("behavior", BEHAVIORS)
@given(pattern=st.sampled_from(PATTERNS), invert=st.booleans(), text=TEXTS)
def test_split_behaves_as_in_the_reference(
    behavior: str, pattern: dict[str, str], invert: bool, text: str
) -> None:
    steps = [split(pattern, behavior, invert), BYTES_ONLY]
    assert_splits_alike({"type": "Sequence", "pretokenizers": steps}, text)


@given(st.booleans(), st.booleans(), st.booleans(), TEXTS)
def test_byte_level_splits_as_in_the_reference(
    prefix: bool, words: bool, after_a_split: bool, text: str
) -> None:
    """A prefix space goes before every piece that reaches it, with the offsets of its neighbour."""
    step = {**BYTE_LEVEL, "add_prefix_space": prefix, "use_regex": words}
    steps = [split({"Regex": "[ab]+"}, "Isolated", False), step] if after_a_split else [step]
    assert_splits_alike({"type": "Sequence", "pretokenizers": steps}, text)


@given(st.booleans(), TEXTS)
def test_digits_split_as_in_the_reference(individual: bool, text: str) -> None:
    digits = {"type": "Digits", "individual_digits": individual}
    assert_splits_alike({"type": "Sequence", "pretokenizers": [digits, BYTE_LEVEL]}, text)


def test_without_a_pre_tokenizer_the_text_is_one_word() -> None:
    """Then the model reads the text itself: no byte alphabet, and no token for a space."""
    file = definition(("a", "b"), pre_tokenizer=None)
    assert ours(file).splitter("ab ab") == ["ab ab"]
    assert_encodes_alike(file, "ab ab")


@given(st.sampled_from([r"\s+|\S+", r"\p{L}+", r"x*", r"(?=b)", r"(a)"]), TEXTS)
def test_the_short_way_gives_the_same_pieces(pattern: str, text: str) -> None:
    """`pieces` asks the regex engine for all matches at once where that is the whole answer."""
    cut = Split(pattern)
    assert cut.pieces(text) == [text[start:end] for start, end in cut.spans(text)]
    assert "".join(cut.pieces(text)) == text
