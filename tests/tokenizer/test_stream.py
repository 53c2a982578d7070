"""The streaming detokenizer: its pieces are the whole text, and none of them is half a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.text_vocabularies import byte_alphabet
from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import added, definition, ours

#: Every byte is a token, whose id is the byte; then merges, added tokens, and ids without a token.
MERGES = (("Ð", "Ł"), ("Ġ", "Ð"), ("ð", "Ł"), ("t", "h"))
TOKENIZER: Tokenizer = ours(
    definition(
        *MERGES,
        added_tokens=[
            added("<|end|>", 260, special=True),
            added("<think>", 261),
            added("é x", 262),
        ],
    )
)
IDS = st.lists(
    st.one_of(
        st.integers(0, 270), st.integers(0x80, 0xF4), st.sampled_from([0xF0, 0x9F, 0x98, 0x80])
    ),
    max_size=40,
)


def of_bytes(value: bytes) -> list[int]:
    """The ids of the byte tokens; in the vocabulary of these tests an id is its byte."""
    return list(value)


def pieces(ids: list[int], skip: bool = False) -> list[str]:
    stream = TOKENIZER.stream(skip)
    return [*map(stream.push, ids), stream.flush()]


def test_byte_tokens_have_the_ids_of_their_bytes() -> None:
    assert [TOKENIZER.token_to_id(token) for token in byte_alphabet()] == list(range(256))


@given(IDS, st.booleans())
def test_pieces_add_up_to_the_whole_text(ids: list[int], skip: bool) -> None:
    assert "".join(pieces(ids, skip)) == TOKENIZER.decode(ids, skip)


@given(st.binary(max_size=40))
def test_bad_bytes_are_replaced_as_python_replaces_them(value: bytes) -> None:
    assert TOKENIZER.decode(of_bytes(value)) == value.decode("utf-8", errors="replace")


@given(IDS)
def test_no_more_than_three_bytes_are_held_back(ids: list[int]) -> None:
    """What is out after each id is all of the text so far but for an unfinished character."""
    stream = TOKENIZER.stream()
    out = ""
    for count, token_id in enumerate(ids, 1):
        out += stream.push(token_id)
        so_far = TOKENIZER.decode(ids[:count])
        assert so_far.startswith(out)
        assert so_far[len(out) :].strip("\ufffd") == ""
        assert len(so_far) - len(out) <= 3


@given(st.text(max_size=20))
def test_a_character_is_shown_by_the_token_that_completes_it(text: str) -> None:
    stream = TOKENIZER.stream()
    for character in text:
        *first, last = of_bytes(character.encode())
        assert [stream.push(token_id) for token_id in first] == [""] * len(first)
        assert stream.push(last) == character
    assert stream.flush() == ""


def test_a_cut_character_is_flushed_once_and_the_stream_is_new() -> None:
    stream = TOKENIZER.stream()
    assert stream.push(0xF0) == stream.push(0x9F) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""
    assert stream.push(0x41) == "A"


def test_only_tokens_called_special_are_skipped() -> None:
    assert TOKENIZER.decode([260, 261, 0x41], skip_special_tokens=True) == "<think>A"
    assert TOKENIZER.decode([260, 261, 0x41]) == "<|end|><think>A"


def test_a_skipped_token_does_not_cut_the_character_around_it() -> None:
    first, *rest = of_bytes("é".encode())
    assert "".join(pieces([first, 260, *rest], skip=True)) == "é"
    assert "".join(pieces([first, 260, *rest])) == "\ufffd<|end|>\ufffd"


def test_an_id_without_a_token_gives_no_text() -> None:
    """Models have more rows than tokenizers have tokens, and may well sample one of them."""
    assert pieces([0x41, 999_999, 0x42]) == ["A", "", "B", ""]
    assert TOKENIZER.id_to_token(999_999) is None


@pytest.mark.parametrize("token_id", [-1, 1.0, "1", None, True])
def test_what_is_no_id_is_the_requests_fault(token_id: object) -> None:
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.decode([token_id])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="token id"):
        TOKENIZER.stream().push(token_id)  # type: ignore[arg-type]
