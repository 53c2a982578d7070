"""Decoders of tokenizer.json one by one: what each makes of a list of tokens, whole and streamed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from engine.errors import ModelFileError, RequestError
from engine.tokenizer.decode.ids import IdDecoder
from engine.tokenizer.formats.decoders import read_decoder
from tests.tokenizer.definitions import BYTE_LEVEL, added, definition, ours
from tests.tokenizer.plain_decoders import text_of

SPACES = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
LLAMA = {"type": "Sequence", "decoders": [SPACES, FALLBACK, FUSE, STRIP]}
WORDS = {"type": "WordPiece", "prefix": "##", "cleanup": True}
ENDS = {"type": "BPEDecoder", "suffix": "</w>"}


def sequence(*decoders: Any) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(decoders)}


def metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}


def pieces(decoder: Any, tokens: list[str]) -> list[str]:
    stream = read_decoder(decoder, "test").stream()
    return [*map(stream.push, tokens), stream.flush()]


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (None, ["a", "b", ""], "a b "),
        (sequence(), ["a", "b"], "ab"),
        (BYTE_LEVEL, ["Ġa", "âĤ", "¬", "a b"], " a€a b"),
        (FALLBACK, ["<0xE2>", "<0x82>", "<0xAC>", "x"], "€x"),
        (FALLBACK, ["<0xE2>", "<0x82>", "x"], "\ufffd\ufffdx"),
        (FALLBACK, ["<0x41>", "<0xFF>"], "\ufffd\ufffd"),
        (FALLBACK, ["<0x4>", "<0X41>", "<0x41>x"], "<0x4><0X41><0x41>x"),
        (FUSE, [], ""),
        (STRIP, ["  a", " b"], " ab"),
        (sequence(FUSE, STRIP), ["  a", " b"], " a b"),
        ({**STRIP, "stop": 2}, [" a   ", "b "], "a b"),
        (SPACES, ["▁a▁", "b"], " a b"),
        ({**SPACES, "pattern": {"Regex": "[▁_]+"}}, ["▁_a_", "▁"], " a  "),
        ({**SPACES, "pattern": {"Regex": "b*"}}, ["ab", ""], " a "),
        ({**SPACES, "pattern": {"String": ""}}, ["ab", ""], " a b "),
        (metaspace("always"), ["▁a▁", "▁b"], "a b"),
        (metaspace("first"), ["▁a", "▁b"], "a b"),
        (metaspace("never"), ["▁a", "▁b"], " a b"),
        (WORDS, ["do", "##n", "'", "t", "I", "'m", "##x", "."], "don ' t I'mx."),
        ({**WORDS, "cleanup": False}, ["##a", "##b", "."], "##ab ."),
        (ENDS, ["a", "b</w>", "c</w>"], "ab c"),
        (LLAMA, ["▁a", "<0xE2>", "<0x82>", "<0xAC>", "▁", "b"], "a€ b"),
        (LLAMA, ["▁", "▁a"], " a"),
        (LLAMA, ["<0x20>", "a"], "a"),
    ],
)
def test_a_list_of_tokens_becomes_this_text(decoder: Any, tokens: list[str], text: str) -> None:
    assert read_decoder(decoder, "test")(tokens) == text
    assert "".join(pieces(decoder, tokens)) == text_of(decoder, tokens, streamed=True)


def test_what_stands_before_fuse_sees_each_token_and_what_stands_behind_sees_one() -> None:
    tokens = [" a", " b"]
    assert read_decoder(sequence(STRIP, FUSE), "test")(tokens) == "ab"
    assert read_decoder(sequence(FUSE, STRIP), "test")(tokens) == "a b"


@pytest.mark.parametrize(
    ("decoder", "tokens", "shown"),
    [
        pytest.param(
            LLAMA, ["▁a", "▁", "b", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "c"],
            ["a", " ", "b", "", "", "€", "A", "c", ""], id="a character is out when it is whole",
        ),
        pytest.param(
            LLAMA, ["<0xF0>", "<0x9F>", "x"], ["", "", "\ufffd\ufffdx", ""],
            id="a character that is cut short is certain when something else comes",
        ),
        pytest.param(
            LLAMA, ["<0x41>", "<0xE2>", "<0xE2>", "<0x41>", "b", "<0x41>"],
            ["A", "", "\ufffd\ufffd", "\ufffd", "b", "A", ""],
            id="a bad run keeps what is out, and nothing else of it is a character",
        ),
        pytest.param(
            BYTE_LEVEL, ["í", "ł", "Ģ"], ["", "\ufffd\ufffd", "\ufffd", ""],
            id="half a surrogate is no beginning of a character",
        ),
        pytest.param(
            sequence(FUSE, {**STRIP, "stop": 2}), [" a ", "  ", " b", " "],
            ["a", " ", "   b", "", ""], id="strip holds back what it may take off",
        ),
        pytest.param(
            sequence(FUSE, {**SPACES, "pattern": {"String": "aab"}}), ["aa", "a", "b", "aa", "x"],
            ["", "a", " ", "", "aax", ""], id="replace holds back the beginning of its text",
        ),
        pytest.param(
            sequence(FUSE, {**SPACES, "pattern": {"String": "aa"}}), ["aaa", "a", "a"],
            [" ", " ", "", "a"], id="occurrences do not overlap",
        ),
        pytest.param(
            sequence(FUSE, {**SPACES, "pattern": {"Regex": "a"}}), ["xa", "b"],
            ["", "", "x b"], id="what a pattern matches is known at the end",
        ),
        pytest.param(
            ENDS, ["ab", "b</w>", "c", "d</w>"], ["ab", "b", " c", "d", ""],
            id="the end of a word is a space if a token follows",
        ),
        pytest.param(
            sequence(FUSE, {**WORDS, "cleanup": False}), ["#", "#a", " ."], ["#", "#a", " .", ""],
            id="the first token is not looked at",
        ),
        pytest.param(
            sequence(FUSE, BYTE_LEVEL), ["ab", "Ġc", "d"], ["ab", "", "", " cd"],
            id="one text is of bytes until a character is none",
        ),
        pytest.param(None, ["a", "b"], ["a", " b", ""], id="a space between tokens"),
    ],
)  # fmt: skip
def test_text_is_shown_as_soon_as_it_is_certain(
    decoder: Any, tokens: list[str], shown: list[str]
) -> None:
    assert pieces(decoder, tokens) == shown


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (
            {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
            "CTC",
        ),
        ({"type": "Odd"}, "Odd"),
        ({}, "without a type"),
        (7, "7"),
        (sequence(FUSE, None), "None"),
        ({"type": "Sequence"}, "decoders"),
        ({**FUSE, "odd": 1}, "odd"),
        ({**FALLBACK, "odd": 1}, "odd"),
        ({**BYTE_LEVEL, "odd": 1}, "odd"),
        ({**BYTE_LEVEL, "use_regex": 1}, "use_regex"),
        ({**STRIP, "start": -1}, "Strip"),
        ({**STRIP, "stop": -1}, "Strip"),
        ({**STRIP, "start": 1.0}, "start"),
        ({**STRIP, "stop": True}, "stop"),
        ({**STRIP, "content": ""}, "one character"),
        ({"type": "Strip", "content": " "}, "start"),
        ({**SPACES, "pattern": "▁"}, "pattern"),
        ({**SPACES, "pattern": {"Regex": "("}}, "pattern"),
        ({**SPACES, "pattern": {"String": "a", "Regex": "b"}}, "pattern"),
        ({"type": "Replace", "pattern": {"String": "a"}}, "content"),
        (metaspace("odd"), "prepend_scheme"),
        ({**metaspace("always"), "replacement": "__"}, "one character"),
        ({**metaspace("first"), "add_prefix_space": False}, "add_prefix_space"),
        ({"type": "WordPiece", "prefix": "##"}, "cleanup"),
        ({**WORDS, "prefix": None}, "prefix"),
        ({"type": "BPEDecoder"}, "suffix"),
    ],
)
def test_what_is_unknown_or_damaged_is_refused_by_name(decoder: Any, named: str) -> None:
    """A step that is passed over gives texts that are almost right."""
    with pytest.raises(ModelFileError, match=f"^test: .*{named}"):
        read_decoder(decoder, "test")


def test_metaspace_of_older_files_is_read() -> None:
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}
    assert read_decoder(old, "test")(["▁a", "▁b"]) == "a b"
    assert read_decoder({**old, "prepend_scheme": "never"}, "test")(["▁a"]) == " a"


def test_a_metaspace_of_2023_without_a_prefix_is_read_as_the_pre_tokenizer_of_that_name() -> None:
    """A file has both, so that whichever of them is refused refuses the file."""
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}
    assert read_decoder(old, "test")(["▁a", "▁b"]) == " a b"


@pytest.mark.parametrize(
    ("decoder", "token"),
    [
        pytest.param(BYTE_LEVEL, "Ģ", id="bad bytes"),
        pytest.param(LLAMA, "<0x80>", id="bad bytes in hexadecimal"),
        pytest.param(sequence(FUSE, {**STRIP, "stop": 9000}), " ", id="Strip"),
        pytest.param(
            sequence(FUSE, {**SPACES, "pattern": {"String": "ab" * 99 + "c"}}), "ab", id="Replace"
        ),
        pytest.param(
            sequence(FUSE, {**SPACES, "pattern": {"Regex": "x"}}), "ab", id="Replace a pattern"
        ),
        pytest.param(sequence(FUSE, BYTE_LEVEL), "Ġ", id="ByteLevel of one text"),
        pytest.param(sequence(FUSE, ENDS), "</w>", id="BPEDecoder of one text"),
    ],
)
def test_a_stream_takes_time_in_proportion(decoder: Any, token: str) -> None:
    """A window that stays open and is decoded again with each token costs the square."""

    def seconds(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            stream = read_decoder(decoder, "test").stream()
            start = time.process_time()
            for _ in range(count):
                stream.push(token)
            stream.flush()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(4000) / seconds(1000) < 8


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", None])
def test_what_is_no_id_is_refused_though_the_list_of_tokens_has_it_as_an_index(wrong: Any) -> None:
    tokenizer = ours(definition())
    assert tokenizer.decode([97, 98, 255]) == tokenizer.decode((97, 98, 255))
    with pytest.raises(RequestError, match=f"^{wrong!r} is no token id"):
        tokenizer.decode([97, wrong, 98])


def test_ids_may_be_as_far_apart_as_the_file_likes() -> None:
    far = IdDecoder.LIMIT * 1000
    file = definition(added_tokens=[added("<far>", far), added("<near>", 300, special=True)])
    tokenizer = ours(file)
    for _ in range(2):  # what the first one worked out serves the second
        assert tokenizer.decode([65, far, 65, 300, 299, far + 1]) == "A<far>A<near>"
        assert tokenizer.decode([65, far, 300, 66], skip_special_tokens=True) == "A<far>B"
        assert tokenizer.decode([far]) == "<far>"
        assert tokenizer.decode([far + 1]) == tokenizer.decode([]) == ""
