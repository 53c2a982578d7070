"""Every pre-tokenizer, alone and in chains, against the tokenizers library: words and places."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies.components import PRE_TOKENIZER
from conformance.strategies.texts import CHARACTERS, SCRIPTS, SPACES
from engine.errors import ModelFileError
from engine.tokenizer.aligned import Aligned
from engine.tokenizer.formats.normalizers import read_normalizer
from engine.tokenizer.formats.splitters import read_splitter
from tests.tokenizer.characters import EVERY
from tests.tokenizer.definitions import added, assert_encodes_alike, definition, ours, reference

TROUBLE = [
    *(
        "a",
        "b",
        "ab",
        " ",
        "  ",
        "▁",
        "_",
        "-",
        "--",
        "é",
        "e\u0301",
        "1",
        "²",
        "½",
        "Ⅷ",
        "٣",
        "東",
    ),
    *(
        "京",
        "ー",
        "い",
        "グ",
        "б",
        "ſ",
        "'s",
        ".",
        "$",
        "+",
        "«",
        "。",
        "\n",
        "\x85",
        "\u3000",
        "\x1c",
    ),
    *("\u200b", "\u200c", "\u200d", "\u0589", "\u061c", "\u0953", "\u166d", "\u2e43", "\u2e50"),
    *("\U000111c9", "\U0001f6dc", "\ue000", "İ", "ı"),
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(TROUBLE), st.text(CHARACTERS, max_size=3), SPACES, SCRIPTS),
    max_size=8,
).map("".join)
SINGLE = st.one_of(
    PRE_TOKENIZER,
    st.integers(1, 5).map(lambda length: {"type": "FixedLength", "length": length}),
)
CHAINS = st.lists(SINGLE, max_size=4).map(
    lambda steps: {"type": "Sequence", "pretokenizers": steps}
)


def assert_splits_alike(pre_tokenizer: dict[str, Any], text: str, **stages: Any) -> None:
    """Words, and the place of each of their characters, are the reference's."""
    splitter = read_splitter(pre_tokenizer, "test")
    words = splitter(text)
    file = definition(pre_tokenizer=pre_tokenizer)
    assert words == [word for word in reference(file).split(text) if word]
    piece = Aligned.original(text)
    assert splitter.words(piece) == [word.text for word in splitter.aligned_words(piece)]
    vocab = {character: i for i, character in enumerate(dict.fromkeys("".join(words) + text))}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    assert_encodes_alike({**file, "model": model, "decoder": None, **stages}, text)


@given(SINGLE, TEXTS)
def test_each_pre_tokenizer_is_the_references(pre_tokenizer: dict[str, Any], text: str) -> None:
    assert_splits_alike(pre_tokenizer, text)


@given(CHAINS, TEXTS)
def test_chains_are_the_references(pre_tokenizer: dict[str, Any], text: str) -> None:
    assert_splits_alike(pre_tokenizer, text)


CLASSES = ["Punctuation", "Whitespace", "BertPreTokenizer", "UnicodeScripts"]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_character_is_classed_as_in_the_reference(kind: str) -> None:
    """Some of the reference's tables are of Unicode 8 and 9: younger characters have no class."""
    spec = {"type": kind}
    splitter, expected = read_splitter(spec, "test"), reference(definition(pre_tokenizer=spec))
    text = "".join(f"x{character}б" for character in EVERY)
    for start in range(0, len(text), 3000):
        part = text[start : start + 3000]
        assert splitter(part) == expected.split(part)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@pytest.mark.parametrize(
    "text", ["ab cd", " ab", "▁ab", "", " ", "<s>ab", "ab<s> cd", "<s>", "  <s>ab", "ab <m>cd<m>"]
)
@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Prepend", "prepend": "▁▁"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
        {"type": "NFKD"},
    ],
    ids=lambda spec: spec and spec["type"],
)
def test_a_mark_goes_before_what_begins_the_original_text(
    normalizer: dict[str, Any] | None, text: str, scheme: str
) -> None:
    """With "first" not a piece behind an added token, nor one whose beginning was taken away."""
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    vocab = {character: i for i, character in enumerate("abcd ▁ms<>")}
    file = definition(
        normalizer=normalizer,
        pre_tokenizer=metaspace,
        model={"type": "BPE", "vocab": vocab, "merges": []},
        added_tokens=[added("<s>", 10, special=True), added("<m>", 11, normalized=True)],
    )
    assert_encodes_alike(file, text)


def test_a_mark_goes_before_every_piece_made_of_the_first_character() -> None:
    """Two pieces can begin where the text begins: both halves of a ligature do."""
    cut = {"type": "Split", "pattern": {"String": "f"}, "behavior": "Isolated", "invert": False}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    assert_splits_alike(
        {"type": "Sequence", "pretokenizers": [cut, metaspace]}, "ﬁfi", normalizer={"type": "NFKD"}
    )


# Each of these is read in one way by Oniguruma and in another, or not at all, by `regex`.
PATTERNS = [
    *(r"\h+", r"\H", r"\R", r"\N+", r"\O", r"\e", r"\x41", r"\u00e9", r"\x{65e5}", r"\/"),
    *("^", "$", r"\Aa", r"b\z", r"b\Z", r"\b", r"\B", r"\Ga", r"a\Kb", r"\Ka", "(?m:.)", "(?-m:.)+"),
    *("a{2}?", "a{1,2}+a", "a{,2}", "a{", "a{x}", "x{2,}?", "a++a", "a?+a", "a{0}"),
    *(r"\w+", r"\W", r"[\w']+", r"[^\W]", r"\p{^L}", r"\P{N}+", r"[^\P{L}a]", r"\p{Han}+", r"\p{Punct}"),
    *("[[:alpha:]]+", "[[:^alpha:]]", "[[:punct:]]", "[[:word:]]", "[[:digit:][:upper:]]", "[^[:alnum:]]"),
    *("[a-z&&[^b]]", "[^a-c&&b]", "[a[bc]]+", "[]a]", "[^]a]", "[--/]", "[a||b]", "[~~a]", "[--a]"),
    *("a(?i)b|c", "(?i)a|b(?-i)c|d", "(?i:'s|'t|k)", "(?i:[a-z]+)", "(?i:[^a-z])", "(?i:i)", r"(?i:\p{Lu})"),
    *(r"(a)\1", "(?<n>a)(b)", "(?#c)a(?#d)+", "(?>a|ab)c", "(?<=a+)b", "(?<!a|bc)d", "a|", "|a", ""),
]  # fmt: skip
PIECES = [
    *("a", "b", "c", "d", "A", "s", "'S", "'ſ", "k", "\u212a", "İ", "ı", "i", "é", "日", "²", "1", "x"),
    *(" ", "\n", "\r\n", "\u2028", "\x85", "-", "/", "]", "|", "~", "&", "{", "_", ".", "\u200d", "\x1b"),
]  # fmt: skip
IN_PATTERNS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
SHUFFLED = ["".join(Random(seed).choices(PIECES, k=12)) for seed in range(40)]


def assert_read_as_by_oniguruma(pattern: str, texts: Sequence[str]) -> None:
    # Replaced by a mark, empty matches can be seen as well.
    spec = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "\0"}
    rewrite, expected = read_normalizer(spec, "test"), reference(definition(normalizer=spec))
    assert [rewrite(text) for text in texts] == [expected.normalize(text) for text in texts]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_it_means_to_oniguruma(pattern: str) -> None:
    assert_read_as_by_oniguruma(pattern, [*SHUFFLED, "".join(PIECES), "aab\n", "ab"])


@given(st.sampled_from(PATTERNS), IN_PATTERNS)
def test_a_pattern_meets_any_text_as_oniguruma_does(pattern: str, text: str) -> None:
    assert_read_as_by_oniguruma(pattern, [text])


REFUSED = [
    (r"\X", r"\X"), (r"\y", r"\y"), (r"\k<n>", r"\k"), (r"\g<1>", r"\g"), (r"\cA", r"\c"),
    (r"\q", r"\q"), (r"\pL", r"\p"), (r"\p{InGreek}", r"\p{InGreek}"), ("(?~a)", "(?~"),
    ("(?x: a)", "(?x"), ("(?<=a++)b", "++"), ("(?i:ß)", "'ß'"), ("(?i:ss)", "'ss'"),
    ("(?i:é)", "'é'"), ("[a-\\d]", "\\d"), ("[[:foo:]]", "[:foo:]"), ("a**", "twice"),
    ("a{3,1}", "{3,1}"), ("*a", "before its *"), ("(a", "close"), ("a)", "not open"),
    ("[a", "close"), ("(?=a)*", "(?=a)"), ("a{0,100001}", "100001"), ("[b-a]", "down"),
    ("[&&a]", "empty"), (r"(?i:[\p{Lu}])", r"\p{Lu}"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "what"), REFUSED)
def test_a_pattern_that_cannot_be_said_exactly_is_refused_by_name(pattern: str, what: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    with pytest.raises(ModelFileError) as error:
        read_splitter({**split, "invert": False}, "test")
    assert what in str(error.value).replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("pre_tokenizer", "what"),
    [
        ({"type": "Digits"}, "individual_digits"),
        ({"type": "Digits", "individual_digits": 1}, "individual_digits"),
        ({"type": "ByteLevel", "trim_offsets": True}, "add_prefix_space"),
        ({"type": "Whitespace", "behavior": "Removed"}, "behavior"),
        ({"type": "Punctuation", "behavior": "removed"}, "'removed'"),
        ({"type": "CharDelimiterSplit", "delimiter": "ab"}, "one character"),
        ({"type": "FixedLength", "length": 0}, "length 0"),
        ({"type": "FixedLength", "length": 2.5}, "2.5"),
        ({"type": "Metaspace", "replacement": ""}, "one character"),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "odd"}, "'odd'"),
        ({"type": "Metaspace", "replacement": "▁", "split": "no"}, "split"),
        ({"type": "Sequence"}, "pretokenizers"),
        ({"type": "Sequence", "pretokenizers": [None, 7]}, "7"),
    ],
)
def test_what_a_field_must_not_be_is_one_clear_error(
    pre_tokenizer: dict[str, Any], what: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"^test: .*{what}"):
        read_splitter(pre_tokenizer, "test")


@pytest.mark.parametrize(
    "older",
    [
        {"add_prefix_space": True},
        {"add_prefix_space": True, "str_rep": "▁"},
        {"add_prefix_space": True, "prepend_scheme": "first"},
        {"add_prefix_space": False, "prepend_scheme": "never"},
        {},
    ],
)
def test_older_spellings_of_metaspace_load(older: dict[str, Any]) -> None:
    assert_splits_alike({"type": "Metaspace", "replacement": "▁", **older}, "ab  cd ")


def test_a_metaspace_of_2023_without_a_prefix_is_read_as_it_was_meant() -> None:
    """The reference of today refuses it, for want of a prepend_scheme."""
    spec = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}
    assert ours(definition(pre_tokenizer=spec)).splitter("ab  cd") == ["ab", "▁", "▁cd"]
