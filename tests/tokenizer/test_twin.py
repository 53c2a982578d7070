"""The twin of a pattern finds what the pattern finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.texts import texts
from engine.tokenizer.patterns.oniguruma import FLAGS
from engine.tokenizer.patterns.twin import Twin, twin_of
from engine.tokenizer.split.pattern import GPT2_WORDS

ASCII_TEXTS = st.text(st.characters(max_codepoint=127), max_size=40) | st.lists(
    st.sampled_from(["'s", "'LL", " ", "  ", "\n", "\r\n", "\t", "a", "B", "12", "345", "...", "/"])
).map("".join)
TEXTS = ASCII_TEXTS | texts(max_fragments=4)
IN_ANOTHER_CASE = "\u0130\u0131\u017f\u212a"

# One twin for all texts, so that it has met the characters of some when it is given others.
met = cache(twin_of)


def assert_twins(pattern: str, text: str) -> None:
    twin = met(pattern)
    assert twin is not None
    cast = twin.cast(text)
    if cast is None:
        assert "(?i" in pattern and set(IN_ANOTHER_CASE) & set(text)
        return
    spans = [match.span() for match in regex.finditer(pattern, text, FLAGS)]
    assert [match.span() for match in cast[0].finditer(cast[1])] == spans


@pytest.mark.parametrize(
    "pattern",
    [
        GPT2_WORDS,
        r"\p{N}{1,3}|\P{N}+",
        r"[^\S\n]+|\s|[\p{L}'-]+",
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?+\p{L}++|.",
        r"[一-龥]+|[^\p{Han}é]+",
        r"^\w+$|\d(?=\D)|(?<![a-c])[x\]\\^-]+",
        r"[]a]+|[^]b]+",
        "é+|(?<=東)[^é]",
    ],
)
@given(TEXTS)
def test_a_twin_matches_what_the_pattern_matches(pattern: str, text: str) -> None:
    assert_twins(pattern, text)


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gptoss", "deepseek_v3"])
def test_the_patterns_of_real_files_have_twins(name: str, asset: Callable[[str], Path]) -> None:
    def patterns(spec: Any) -> list[str]:
        match spec:
            case {"pretokenizers": list(parts)}:
                return [pattern for part in parts for pattern in patterns(part)]
            case {"pattern": {"Regex": str(pattern)}}:
                return [pattern]
        return []

    file = asset(f"tokenizer-{name}") / "tokenizer.json"
    found = patterns(json.loads(file.read_text("utf-8"))["pre_tokenizer"])
    assert found

    @given(TEXTS)
    def compare(text: str) -> None:
        for pattern in found:
            assert_twins(pattern, text)

    compare()


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bword",
        r"[a-z&&[aeiou]]",
        r"(?<name>a)(?P=name)",
        r"(?i:ſ)",
        r"(?i:a\p{Lu})",
        r"(?i:(b))",
        r"\Astart",
        r"(?x) a b",
        r"(?:abc){e<=1}",
        "[a",
    ],
)
def test_what_the_packages_read_in_two_ways_has_no_twin(pattern: str) -> None:
    assert twin_of(pattern) is None


@pytest.mark.parametrize("bound", ["MOST", "LIMIT"])
def test_a_twin_holds_few_kinds_and_characters(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind too many and there is no cast; a character too many and it starts afresh."""
    monkeypatch.setattr(Twin, bound, 2)
    twin = twin_of(r"\p{Lu}+|\p{Ll}+|\p{N}+")
    assert twin is not None
    assert twin.cast("ÉÀé") is not None
    assert twin.cast("²³é") is None if bound == "MOST" else twin.cast("²³é") is not None
    pattern, cast = twin.cast("ÀÉàé") or (regex.compile("."), "")
    assert [match.span() for match in pattern.finditer(cast)] == [(0, 2), (2, 4)]
