"""tiktoken's rank files: the tokens are those of the tiktoken library."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.pieces import RankReference, tiktoken_pattern, tiktoken_special_tokens
from conformance.strategies.texts import texts
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.alphabet import bytes_of
from engine.tokenizer.formats.parts import CL100K_WORDS, Definition
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.tiktoken import definition_from_tiktoken
from engine.tokenizer.stages import Surroundings
from tests.tokenizer.definitions import reference, written_out

Ranks = dict[bytes, int]

BYTES: Ranks = {bytes([byte]): byte for byte in range(256)}
WORDS = b"in th the he an and er 10 100 00 .. \xe6\x9d \xe6\x9d\xb1 aa aaa aaaa ab aba ba baa"
SMALL: Ranks = {
    token: i for i, token in enumerate([*BYTES, *WORDS.split(), b" t", b" the", b"\n\n"])
}


def written(ranks: Ranks) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def load(file: bytes, name: str) -> tuple[Tokenizer, Definition]:
    definition = definition_from_tiktoken(file, name, "test")
    return Tokenizer(stages_of(definition, "test"), Surroundings(), "test"), definition


def specials(definition: Definition) -> dict[str, int]:
    return {entry["content"]: entry["id"] for entry in definition["added_tokens"]}


@cache
def both(name: str) -> tuple[Tokenizer, RankReference]:
    tokenizer, definition = load(written(SMALL), name)
    return tokenizer, RankReference(SMALL, tiktoken_pattern(name), specials(definition))


NAMES = [
    "gpt2",
    "r50k_base",
    "p50k_base",
    "p50k_edit",
    "cl100k_base",
    "o200k_base",
    "o200k_harmony",
]


@pytest.mark.parametrize("name", ["r50k_base", "cl100k_base", "o200k_base"])
@given(data=st.data())
def test_a_known_file_cuts_words_as_the_library(name: str, data: st.DataObject) -> None:
    """Its own patterns are written with other quantifiers, which match the same."""
    tokenizer, expected = both(name)
    text = data.draw(
        texts(["don't", "I'LL", "THEyʼre", "12345", "x\n\n y", "!?\r\n/"], ["<|endoftext|>"])
    )
    special = data.draw(st.booleans())
    ids = expected.encode(text, special)
    assert tokenizer.encode(text, parse_special=special) == ids
    assert tokenizer.decode(ids) == expected.decode(ids)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt2"])
def test_a_known_file_has_the_librarys_special_tokens(name: str) -> None:
    theirs = tiktoken_special_tokens(name)
    theirs.pop("<|reserved_200018|>", None)  # a second name of <|endofprompt|>
    assert specials(load(written(SMALL), name)[1]) == theirs


@given(data=st.data())
def test_any_ranks_give_the_librarys_tokens(data: st.DataObject) -> None:
    """The pair that makes the best token merges first, the leftmost of equal ones."""
    longer = data.draw(st.lists(st.binary(min_size=2, max_size=5).map(letters), unique=True))
    ranks = {token: i for i, token in enumerate([*BYTES, *longer])}
    tokenizer = load(written(ranks), "r50k_base")[0]
    expected = RankReference(ranks, tiktoken_pattern("r50k_base"), {})
    for text in data.draw(st.lists(st.text("abc", max_size=25), min_size=1, max_size=5)):
        assert tokenizer.encode(text, parse_special=False) == expected.encode(text)


def letters(noise: bytes) -> bytes:
    return bytes(b"abc"[byte % 3] for byte in noise)


def test_the_tokenizer_json_is_a_real_one() -> None:
    tokenizer, definition = load(written(SMALL), "cl100k_base")
    expected = reference(written_out(definition))
    for text in ("in the end aaaaabab", "東京 10000...\n\n", ""):
        theirs, ours = expected.encode(text), tokenizer.encode_with_offsets(text)
        assert (ours.ids, ours.tokens, ours.offsets) == (theirs.ids, theirs.tokens, theirs.offsets)


def ranks_of(folder: Path) -> Ranks:
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return {bytes_of(token): i for token, i in file["model"]["vocab"].items()}


def test_llama3s_file_is_known_by_its_size(asset: Callable[[str], Path], tmp_path: Path) -> None:
    folder = asset("tokenizer-llama3")
    ranks = ranks_of(folder)
    (tmp_path / "tokenizer.model").write_bytes(written(ranks))
    tokenizer, same = Tokenizer.load(tmp_path), Tokenizer.load(folder)
    expected = RankReference(ranks, CL100K_WORDS, {"<|begin_of_text|>": 128000})
    for text in ("The capital of France is Paris.", "x = 10000 + 1\n\n  東京 مرحبا", "a" * 300):
        ids = expected.encode(text)
        assert tokenizer.encode(text) == [128000, *ids]
        assert same.encode(text, add_special_tokens=False) == ids
    for token in ("<|begin_of_text|>", "<|eot_id|>", "<|reserved_special_token_250|>"):
        assert tokenizer.token_to_id(token) == same.token_to_id(token) is not None
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (128000, (128001,))


def in_folder(tmp_path: Path, name: str, config: Mapping[str, Any]) -> Path:
    (tmp_path / name).write_bytes(written(SMALL))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_special_tokens_come_from_beside_the_file(tmp_path: Path) -> None:
    decoder = {
        "128000": {"content": "<|begin_of_text|>", "special": True},
        "128009": {"content": "<|eot_id|>", "special": True},
        "128010": {"content": "<tool>", "special": False},
    }
    config = {"added_tokens_decoder": decoder, "eos_token": "<|eot_id|>"}
    tokenizer = Tokenizer.load(in_folder(tmp_path, "tokenizer.model", config))
    ids = tokenizer.encode("the<tool><|eot_id|>")
    assert ids == [128000, SMALL[b"the"], 128010, 128009]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the<tool>"
    assert tokenizer.eos_ids == (128009,)


def test_a_folder_can_ask_for_no_bos(tmp_path: Path) -> None:
    decoder = {"128000": {"content": "<|begin_of_text|>", "special": True}}
    config = {"added_tokens_decoder": decoder, "add_bos_token": False}
    assert Tokenizer.load(in_folder(tmp_path, "tokenizer.model", config)).encode("a") == [97]


@pytest.mark.parametrize(
    ("file", "name", "message"),
    [
        (written(SMALL), "mine", "'mine'"),
        (written({b"a": 0}), "cl100k_base", "byte 0 has none"),
        (written(SMALL) + b"YQ== 999\n", "cl100k_base", "twice"),
        (written({**SMALL, b"zz": 5}), "cl100k_base", "twice"),
        (written(SMALL) + b"YQ==\n", "cl100k_base", f"line {len(SMALL) + 1}"),
        (written(SMALL) + b"YQ== -1\n", "cl100k_base", f"line {len(SMALL) + 1}"),
        (written(SMALL) + b"Y!== 900\n", "cl100k_base", f"line {len(SMALL) + 1}"),
        (written(SMALL) + b"YQ 900\n", "cl100k_base", "base64"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(file: bytes, name: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(file, name)


@pytest.mark.parametrize(
    "decoder",
    [[1], {"x": {"content": "a"}}, {"1": {}}, {"1": {"content": 7}}, {"-1": {"content": "a"}}],
)
def test_damaged_special_tokens_are_one_clear_error(tmp_path: Path, decoder: Any) -> None:
    folder = in_folder(tmp_path, "cl100k_base.tiktoken", {"added_tokens_decoder": decoder})
    with pytest.raises(ModelFileError, match="added_tokens_decoder"):
        Tokenizer.load(folder)
