"""Every normalizer, alone and in chains, against the tokenizers library: text and places."""

from __future__ import annotations

import base64
import json
import struct
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.charsmap import charsmap
from conformance.strategies.components import NORMALIZER
from conformance.strategies.texts import CHARACTERS, MARKS, SCRIPTS, SPACES
from engine.errors import ModelFileError
from engine.tokenizer.aligned import Aligned, Rewrite
from engine.tokenizer.formats.normalizers import read_normalizer
from engine.tokenizer.formats.sentencepiece_file import read_sentencepiece
from tests.tokenizer.characters import EVERY
from tests.tokenizer.definitions import definition, reference

# What one normalizer or another treats in a way of its own.
TROUBLE = [
    *(
        "a",
        "b",
        "ab",
        " ",
        "▁",
        "é",
        "e\u0301",
        "ﬁ",
        "…",
        "①",
        "\u200b",
        "東",
        "ß",
        "👍",
        "b\u0301",
    ),
    *("ΑΣ", "Σ", "İ", "Ǆ", "ẞ", "\x1c", "\x85", "\u3000", "\x00", "\x07", "\ufffd", "\ufeff", "中"),
    *(
        "\u0344",
        "\u0f73",
        "\u0f71",
        "\u1112\u1161\u11ab",
        "\u0915\u094d\u0937",
        "\r\n",
        "\u1ace\u0323",
    ),
    *(
        "\U00011935\U00011930",
        "\U00011938",
        "\uab69",
        "㋿",
        "\u1734",
        "\u1cf2",
        "\u08e2",
        "\U000111c9",
    ),
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(TROUBLE), st.text(CHARACTERS, max_size=3), MARKS, SPACES, SCRIPTS),
    max_size=8,
).map("".join)
SINGLE = st.one_of(NORMALIZER, st.just({"type": "Nmt"}))
CHAINS = st.lists(SINGLE, max_size=4).map(lambda steps: {"type": "Sequence", "normalizers": steps})


@cache
def rewrite(spec: str) -> Rewrite:
    return read_normalizer(json.loads(spec), "test")


def assert_normalises_alike(normalizer: dict[str, Any], text: str) -> None:
    """The text is the reference's, and so is the place of every character that has one.

    A character that was put before all others stands for none. When such a text is rewritten again
    the reference panics, or repeats what was put there: that is no answer to be equal to.
    """
    steps = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    piece = Aligned.original(text)
    for step in steps:
        if any(place < 0 for place in piece.where):
            return
        piece = piece.rewritten(rewrite(json.dumps(step)))
    whole = Aligned.original(text).rewritten(rewrite(json.dumps(normalizer)))
    assert (whole.text, list(whole.where)) == (piece.text, list(piece.where))
    model = {"type": "BPE", "vocab": {c: i for i, c in enumerate(set(whole.text))}, "merges": []}
    expected = reference(definition(normalizer=normalizer, pre_tokenizer=None, model=model))
    assert whole.text == expected.normalize(text)
    encoding = expected.encode(text)
    assert list(whole.text) == encoding.tokens
    assert [whole.span(i, i + 1) for i in range(len(whole.text))] == encoding.offsets


@given(SINGLE, TEXTS)
def test_each_normalizer_is_the_references(normalizer: dict[str, Any], text: str) -> None:
    assert_normalises_alike(normalizer, text)


@given(CHAINS, TEXTS)
def test_chains_are_the_references(normalizer: dict[str, Any], text: str) -> None:
    assert_normalises_alike(normalizer, text)


@pytest.mark.parametrize(
    "text", ["\x01ab", "\x01\x01", "ﬁ\x01b", "\x01ﬁ", "a\u0301\u0302b", "ab\x01"]
)
def test_what_a_table_removes_counts_for_the_character_before(text: str) -> None:
    """At the start of a text there is none, and everything behind stands one place too early."""
    table = charsmap({"\x01": "", "ﬁ": "fi", "a\u0301\u0302": "q", "b": "xyz", "ab": "c"})
    assert_normalises_alike({"type": "Precompiled", "precompiled_charsmap": table}, text)


def test_the_table_of_a_trained_sentencepiece_model_is_applied_as_in_the_reference() -> None:
    from conformance.oracle.pieces import train

    trained = train(model_type="bpe", vocab_size=300, normalization_rule_name="nmt_nfkc_cf")
    table = base64.b64encode(read_sentencepiece(trained, "test").charsmap).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}

    @given(TEXTS)
    def compare(text: str) -> None:
        assert_normalises_alike(normalizer, text)

    compare()


def test_every_character_is_classed_as_in_the_reference() -> None:
    """Some of the reference's tables are of Unicode 8 and 9: younger characters have no class."""
    text = "".join(EVERY)
    kinds = ["StripAccents", "Nmt", "NFKC", "NFD", "Lowercase"]
    bert = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": True}
    for spec in [
        *({"type": kind} for kind in kinds),
        {"type": "BertNormalizer", **bert, "lowercase": False},
    ]:
        ours, theirs = read_normalizer(spec, "test"), reference(definition(normalizer=spec))
        for start in range(0, len(text), 1000):
            part = text[start : start + 1000]
            assert ours(part) == theirs.normalize(part)


@pytest.mark.parametrize(
    ("normalizer", "what"),
    [
        ({"type": "Strip", "strip_left": True}, "strip_right"),
        ({"type": "Strip", "strip_left": 1, "strip_right": True}, "strip_left"),
        ({"type": "Lowercase", "locale": "tr"}, "locale"),
        ({"type": "Prepend", "prepend": None}, "prepend"),
        ({"type": "Replace", "pattern": {"String": "a"}}, "content"),
        ({"type": "Replace", "pattern": " ", "content": ""}, "pattern"),
        ({"type": "Replace", "pattern": {"String": 1}, "content": ""}, "pattern"),
        ({"type": "Replace", "pattern": {"Regex": r"\X"}, "content": ""}, r"uses \\X"),
        ({"type": "BertNormalizer", "clean_text": True}, "handle_chinese_chars"),
        ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "precompiled_charsmap"),
        ({"type": "Precompiled", "precompiled_charsmap": "!"}, "precompiled_charsmap"),
        ({"type": "Sequence", "normalizers": None}, "normalizers"),
        ({"type": "Sequence", "normalizers": ["NFC"]}, "NFC"),
    ],
)
def test_what_a_field_must_not_be_is_one_clear_error(normalizer: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelFileError, match=rf"^test: .*{what}"):
        read_normalizer(normalizer, "test")


@pytest.mark.parametrize(
    ("units", "replacements"),
    [
        ([1 << 10], b"a\0"),  # its children lie in the block, its grandchildren may not
        ([0xFFFFFFFF >> 1 & ~0x3FF | 1 << 9], b"a\0"),
        ([0, 1 << 31 | 3], b"a\0"),
        ([0, 1 << 31 | 1], "é\0".encode()),
        ([0], b"\xff\0"),
    ],
    ids=["small", "far", "beyond", "inside-a-character", "no-text"],
)
def test_a_table_that_points_outside_itself_is_one_clear_error(
    units: list[int], replacements: bytes, request: pytest.FixtureRequest
) -> None:
    trie = struct.pack(f"<{len(units)}I", *units)
    table = base64.b64encode(struct.pack("<I", len(trie)) + trie + replacements).decode()
    spec = {"type": "Precompiled", "precompiled_charsmap": table}
    if request.node.callspec.id == "small":
        assert read_normalizer(spec, "test")("abc") == "abc"
        return
    with pytest.raises(ModelFileError, match="precompiled_charsmap"):
        read_normalizer(spec, "test")
