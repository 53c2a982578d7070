"""What a token adds to a text, in bytes: joined they are the text that the stream shows.

That of real tokenizers is in test_against_reference, which loads them.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance.golden import REPOSITORY_GOLDENS
from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.decoders import read_decoder
from tests.tokenizer.bytes_law import assert_bytes_are_the_text
from tests.tokenizer.definitions import added, definition, ours
from tests.tokenizer.test_decode import (
    ENDS,
    FALLBACK,
    FUSE,
    LLAMA,
    SPACES,
    WORDS,
    metaspace,
    sequence,
)

#: Vocabularies of every kind: byte-level, byte fallback, pieces without bytes, words.
GOLDENS = ("text-llama3", "text-llama2", "text-gemma", "text-unigram", "text-wordpiece")


@pytest.mark.parametrize("name", GOLDENS)
def test_the_bytes_of_a_vocabulary_of_every_kind_are_the_text(name: str) -> None:
    assert_bytes_are_the_text(Tokenizer.load(REPOSITORY_GOLDENS / name), of_texts=100)


@pytest.mark.parametrize(
    ("decoder", "token", "data"),
    [
        (None, "a", b" a"),
        (LLAMA, "▁a▁", b" a "),
        (LLAMA, "<0xE2>", b"\xe2"),
        (LLAMA, "<0xZZ>", b"<0xZZ>"),
        (FALLBACK, "<0x0A>", b"\n"),
        (SPACES, "▁é", " é".encode()),
        (FUSE, "<0x0A>", b"<0x0A>"),
        (metaspace("always"), "▁a", b" a"),
        (WORDS, "a", b" a"),
        (WORDS, "##a", b"a"),
        (WORDS, ".", b"."),
    ],
)
def test_a_token_is_spelled_as_inside_of_a_text(decoder: Any, token: str, data: bytes) -> None:
    assert read_decoder(decoder, "test").added_bytes(token) == data


@pytest.mark.parametrize(
    "decoder",
    [
        ENDS,  # the mark of a word's end is a space, but in the last token
        sequence(FUSE, SPACES),  # a text of all tokens is rewritten, across their borders
        sequence(FALLBACK, SPACES, FUSE),  # and one of all bytes in a row
        sequence(FUSE, FALLBACK),
    ],
)
def test_a_token_that_depends_on_its_neighbours_has_no_bytes(decoder: Any) -> None:
    assert read_decoder(decoder, "test").added_bytes("a") is None


def test_ids_without_a_token_have_no_bytes_and_special_tokens_are_told_apart() -> None:
    tokens = [added("<|end|>", 300, special=True), added("    ", 301)]
    tokenizer = ours(definition(added_tokens=tokens))
    assert tokenizer.token_bytes(299) is None
    assert tokenizer.token_bytes(300) == b"<|end|>"
    assert tokenizer.token_bytes(301) == b"    "
    assert tokenizer.special_ids == {300}
    with pytest.raises(RequestError, match="is no token id"):
        tokenizer.token_bytes(-1)
