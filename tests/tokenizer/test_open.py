"""Which file of a folder is its tokenizer, and what a file is whatever it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.open import tokenizer_file
from tests.tokenizer.definitions import definition
from tests.tokenizer.pieces import FIXTURES
from tests.tokenizer.test_tekken import FILE as TEKKEN
from tests.tokenizer.test_tiktoken import SMALL, written

CONTENT = {
    "tokenizer.json": json.dumps(definition()).encode(),
    "tokenizer.model": (FIXTURES / "bpe-bytes.model").read_bytes(),
    "tekken.json": json.dumps(TEKKEN).encode(),
    "cl100k_base.tiktoken": written(SMALL),
}


@pytest.mark.parametrize("name", CONTENT)
def test_a_file_is_read_alone_and_in_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENT[name])
    assert tokenizer_file(tmp_path) == tmp_path / name
    text = "the theme"
    ids = Tokenizer.load(tmp_path).encode(text)
    assert ids == Tokenizer.load(tmp_path / name).encode(text)
    assert Tokenizer.load(tmp_path).decode(ids, skip_special_tokens=True) == text


def test_in_a_folder_the_file_that_says_most_counts(tmp_path: Path) -> None:
    """They hold the same vocabulary, but only a tokenizer.json says all about it."""
    for name in reversed(CONTENT):
        (tmp_path / name).write_bytes(CONTENT[name])
        assert tokenizer_file(tmp_path) == tmp_path / name


def test_a_tokenizer_model_may_be_tiktokens(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(CONTENT["cl100k_base.tiktoken"])
    beside = {"added_tokens_decoder": {"128000": {"content": "<|begin_of_text|>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside), encoding="utf-8")
    assert Tokenizer.load(tmp_path).encode("the") == [128000, SMALL[b"the"]]


def test_a_folder_without_a_tokenizer_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert tokenizer_file(tmp_path) is None
    with pytest.raises(ModelFileError, match=r"tokenizer\.json .*tokenizer\.model.*tekken\.json"):
        Tokenizer.load(tmp_path)
    assert tokenizer_file(tmp_path / "missing") is None
    with pytest.raises(ModelFileError, match="missing does not exist"):
        Tokenizer.load(tmp_path / "missing")


def test_a_choice_of_rank_files_is_left_to_the_user(tmp_path: Path) -> None:
    for name in ("cl100k_base.tiktoken", "r50k_base.tiktoken"):
        (tmp_path / name).write_bytes(written(SMALL))
    with pytest.raises(ModelFileError, match=r"cl100k_base\.tiktoken, r50k_base\.tiktoken"):
        Tokenizer.load(tmp_path)
    assert Tokenizer.load(tmp_path / "r50k_base.tiktoken").encode("the") == [SMALL[b"the"]]


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x0a\x05", b"PK\x03\x04 zip", b"the 7", b"7"])
def test_a_file_of_another_kind_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelFileError, match="known format"):
        Tokenizer.load(tmp_path)
