"""Files that nobody wrote in good faith: one clear error or a tokenizer, and no hang."""

from __future__ import annotations

import json
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.normalize.forms import UnicodeForm

FLAGS = dict.fromkeys(("special", "normalized", "lstrip", "rstrip", "single_word"), False)


def file_with(folder: Path, **parts: Any) -> Path:
    """Write the file of a tokenizer that knows "a", "b" and "ab"."""
    model = {"type": "BPE", "vocab": {"?": 0, "a": 1, "b": 2, "ab": 3}, "merges": ["a b"]}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": {**model, "unk_token": "?"}, **parts}))
    return path


def added(token_id: Any, content: Any, **flags: Any) -> dict[str, Any]:
    return {"id": token_id, "content": content, **FLAGS, **flags}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


@pytest.mark.parametrize(
    "tokens",
    [
        {"a": 1},
        "abc",
        0,
        [5],
        [added(4.0, "x")],
        [added(True, "x")],
        [added("4", "x")],
        [added(float("inf"), "x")],
        [added(-1, "x")],
        [added(1 << 32, "x")],
        [added(4, 5)],
        [added(4, "x", special=None)],
        [added(4, "x", lstrip="no")],
        [{"id": 4, "content": "x"}],
        [added(9, "a")],
        [added(1, "x")],
        [added(4, "x"), added(4, "y")],
        [added(4, "x"), added(5, "x")],
        [added(4, "x" * 2_000_000)],
    ],
    ids=lambda tokens: repr(tokens)[:60],
)
def test_added_tokens_that_cannot_be_are_refused(tmp_path: Path, tokens: Any) -> None:
    """An id of 1e999 was a traceback, one of another token silently took that token's place."""
    path = file_with(tmp_path, added_tokens=tokens)
    with pytest.raises(ModelFileError, match=r"added.token") as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("ids", "tokens"), [([1], [None]), ([1], [5]), ([1 << 32], ["a"]), ([True], ["a"]), ([1], [])]
)
def test_a_template_of_tokens_that_cannot_be_is_refused(
    tmp_path: Path, ids: Any, tokens: Any
) -> None:
    """A token spelled null loaded, and stood as None among the tokens of every text."""
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"SpecialToken": {"id": "x", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [special, piece],
        "pair": [piece, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"x": {"id": "x", "ids": ids, "tokens": tokens}},
    }
    with pytest.raises(ModelFileError, match="special token 'x'"):
        Tokenizer.load(file_with(tmp_path, post_processor=template))


@pytest.mark.parametrize("end", ["", "b"])
def test_tokens_of_every_length_are_found_the_longest_first(tmp_path: Path, end: str) -> None:
    """A token for each run of up to 500 "x" was a pattern of 500 groups: RecursionError."""
    tokens = [added(9 + n, "x" * n + end) for n in range(1, 500)]
    tokenizer = Tokenizer.load(file_with(tmp_path, added_tokens=tokens))
    for n in (1, 60, 70, 499):
        assert tokenizer.encode("a" + "x" * n + "b")[1] == 9 + n


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 5000,
        "(" * 4000 + "a" + ")" * 4000,
        "[" * 5000,
        "(?i)" * 4000 + "a",
        "(?=" * 2000 + ")" * 2000,
        "a" * 1_000_000,
        "((((a{999}){999}){999}){999})",
        "(?:(?:a{0,9999}){999}){9999}",
        "(?:" + "ab" * 1000 + "){99999}",
    ],
    ids=lambda pattern: pattern[:20],
)
def test_a_pattern_that_would_fill_the_memory_is_refused(tmp_path: Path, pattern: str) -> None:
    """Nested repeats took gigabytes to compile, nested groups were a RecursionError."""
    with pytest.raises(ModelFileError, match="pattern that is not supported"):
        Tokenizer.load(file_with(tmp_path, pre_tokenizer=split(pattern)))


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(?:a|a)*b", "(.*)*(.*)*(.*)*x", "a?" * 30 + "a" * 30, "(?:a|a)*?b"]
)
def test_a_pattern_with_very_many_ways_to_match_does_not_hang(tmp_path: Path, pattern: str) -> None:
    """In ASCII text such patterns went to `re`, which tries them all; `regex` does not."""
    tokenizer = Tokenizer.load(file_with(tmp_path, pre_tokenizer=split(pattern)))
    assert len(tokenizer.encode("a" * 30 + "!")) == 31


@pytest.mark.parametrize("depth", [10, 400, 5000])
@pytest.mark.parametrize(
    ("stage", "parts", "leaf"),
    [
        ("normalizer", "normalizers", {"type": "NFC"}),
        ("pre_tokenizer", "pretokenizers", {"type": "WhitespaceSplit"}),
        ("decoder", "decoders", {"type": "Fuse"}),
    ],
)
def test_sequences_in_sequences_work_or_are_refused(
    tmp_path: Path, stage: str, parts: str, leaf: Any, depth: int
) -> None:
    """A chain of chains ran out of stack as soon as offsets were asked for."""
    path = file_with(tmp_path, **{stage: "HERE"})
    nested = f'{{"type": "Sequence", "{parts}": [' * depth + json.dumps(leaf) + "]}" * depth
    path.write_text(path.read_text().replace('"HERE"', nested))
    try:
        tokenizer = Tokenizer.load(path)
    except ModelFileError:
        assert depth > 100
        return
    assert tokenizer.encode_with_offsets("ab").ids == [3]
    assert tokenizer.decode([3]) == "ab"


@pytest.mark.parametrize("prefix", ["\ud800", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_refused_when_the_file_is_read(
    tmp_path: Path, prefix: str
) -> None:
    """It loaded, and the first text to encode was a UnicodeEncodeError."""
    path = file_with(tmp_path, normalizer={"type": "Prepend", "prepend": prefix})
    with pytest.raises(ModelFileError, match="surrogates not allowed"):
        Tokenizer.load(path)


def test_both_halves_of_a_pair_are_one_character(tmp_path: Path) -> None:
    """JSON spells the characters beyond U+FFFF so; a check for halves must let them pass."""
    path = file_with(tmp_path, added_tokens=[added(4, "\U0001f600")])
    assert r"\ud83d\ude00" in path.read_text()
    assert Tokenizer.load(path).encode("\U0001f600") == [4]


def test_an_error_does_not_repeat_a_long_part_of_the_file(tmp_path: Path) -> None:
    """A merge of a token with a million characters was an error message of a megabyte."""
    path = file_with(tmp_path)
    path.write_text(path.read_text().replace("a b", "a " + "b" * 1_000_000))
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.load(path)
    assert len(str(caught.value)) < 1000


MARKS = "\u0316\u0301\u0327\u0344\u0f71\u0f72\u0f73\u0345\u3099"


@given(st.text(MARKS + "ac\u304b", max_size=20), st.text(MARKS, min_size=60, max_size=90))
def test_long_runs_of_marks_are_put_in_order(text: str, run: str) -> None:
    """They are sorted here before `unicodedata` sees them, and the result must be its own."""
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert UnicodeForm(form)(text + run) == unicodedata.normalize(form, text + run)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_marks_out_of_order_take_linear_time(form: Any) -> None:
    """`unicodedata` needs the square of a run: 400,000 marks, a text of one line, took an hour."""
    normalize = UnicodeForm(form)
    times = []
    for pairs in (20_000, 80_000):
        text = "a" + "\u0301\u0316" * pairs
        start = time.perf_counter()
        normalize(text)
        normalize.sources(text)
        times.append(time.perf_counter() - start)
    assert times[1] < 8 * times[0] + 0.2
