"""Mistral's tekken.json: special tokens first, then tiktoken's ranks."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from conformance.oracle.pieces import RankReference
from conformance.strategies.texts import texts
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.parts import TEKKEN_WORDS, Definition
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.tekken import definition_from_tekken
from engine.tokenizer.stages import Surroundings
from tests.tokenizer.definitions import reference, written_out
from tests.tokenizer.test_tiktoken import SMALL

VOCAB = [
    {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
    for token, rank in SMALL.items()
]
SPECIAL = [
    {"rank": i, "token_str": token, "is_control": True}
    for i, token in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
]
CONFIG = {
    "pattern": TEKKEN_WORDS,
    "num_vocab_tokens": len(VOCAB),
    "default_vocab_size": len(VOCAB) + 10,
    "default_num_special_tokens": 10,
    "version": "v11",
}
FILE: dict[str, Any] = {"config": CONFIG, "vocab": VOCAB, "special_tokens": SPECIAL}


def changed(**changes: Any) -> dict[str, Any]:
    """The file with other parts, or other fields of its config; None takes one away."""
    config = {**CONFIG, **{k: v for k, v in changes.items() if k in CONFIG}}
    parts = {**FILE, "config": config, **{k: v for k, v in changes.items() if k not in CONFIG}}
    return {key: value for key, value in parts.items() if value is not None}


def load(file: dict[str, Any]) -> tuple[Tokenizer, Definition]:
    definition = definition_from_tekken(file, "test")
    return Tokenizer(stages_of(definition, "test"), Surroundings(), "test"), definition


@cache
def both() -> tuple[Tokenizer, RankReference]:
    return load(FILE)[0], RankReference(SMALL, TEKKEN_WORDS, {})


@given(text=texts(["thE THe", "1234", "x/\n/", "don't"], ["[INST]"]))
def test_ids_are_ranks_after_the_special_tokens(text: str) -> None:
    tokenizer, expected = both()
    theirs = expected.encode(text, parse_special=False)
    ours = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert ours == [10 + rank for rank in theirs]
    assert tokenizer.decode(ours) == expected.decode(theirs)


def test_special_tokens_have_the_first_ids_and_bos_comes_first() -> None:
    tokenizer = both()[0]
    ids = tokenizer.encode("[INST]a[/INST]")
    assert ids == [1, 3, 10 + 97, 4]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a"
    assert tokenizer.id_to_token(9) == "<SPECIAL_9>"


def test_a_vocabulary_is_cut_to_the_size_that_the_config_wants() -> None:
    tokenizer = load(changed(default_vocab_size=10 + 257))[0]
    assert tokenizer.vocab_size == 267
    assert tokenizer.encode("then", add_special_tokens=False) == [10 + ord(c) for c in "then"]


def test_old_files_leave_their_special_tokens_to_the_reader() -> None:
    file = changed(special_tokens=None, version="v3", default_num_special_tokens=1000)
    file["config"]["default_vocab_size"] = 1000 + len(VOCAB)
    tokenizer = load(file)[0]
    assert tokenizer.token_to_id("[TOOL_CALLS]") == 9
    assert tokenizer.token_to_id("[TOOL_CONTENT]") == 19
    assert tokenizer.token_to_id("<SPECIAL_999>") == 999
    assert tokenizer.encode("a") == [1, 1097]


def test_the_tokenizer_json_is_a_real_one() -> None:
    tokenizer, definition = load(FILE)
    expected = reference(written_out(definition))
    for text in ("in the end aaaaabab", "東京 10000...\n\n", ""):
        theirs, ours = expected.encode(text), tokenizer.encode_with_offsets(text)
        assert (ours.ids, ours.tokens, ours.offsets) == (theirs.ids, theirs.tokens, theirs.offsets)


def test_a_folder_with_a_tekken_json_loads(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(FILE), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the") == [1, 10 + SMALL[b"the"]]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (changed(version="v2"), "'v2'"),
        (changed(version=None), "None"),
        (changed(special_tokens=None), "list its special_tokens"),
        (changed(pattern=None), "pattern"),
        (changed(pattern="("), "pattern"),
        (changed(default_vocab_size=10**9), "default_vocab_size"),
        (changed(default_vocab_size=5), "wants -5"),
        (changed(default_vocab_size=1000), "wants 990"),
        (changed(default_num_special_tokens="10"), "default_num_special_tokens"),
        (changed(default_num_special_tokens=3, default_vocab_size=13), "special_tokens"),
        (changed(config=7), "config"),
        (changed(vocab={}), "vocab"),
        (changed(vocab=[*VOCAB[:-1], 7]), "entry"),
        (changed(vocab=[*VOCAB[:-1], {**VOCAB[-1], "rank": 3}]), "missing"),
        (changed(vocab=[*VOCAB[:-1], {**VOCAB[-1], "token_bytes": "YQ=="}]), "twice"),
        (changed(vocab=[*VOCAB[:-1], {**VOCAB[-1], "token_bytes": "Y"}]), "base64"),
        (changed(vocab=VOCAB[1:]), "wants"),
        (changed(special_tokens=[{"rank": 1}]), "special_tokens"),
        (changed(special_tokens=[{"rank": 20, "token_str": "x"}]), "0 to 9"),
        (changed(special_tokens=[{"rank": 0, "token_str": 7}]), "0 to 9"),
        (changed(special_tokens=[{**entry, "token_str": "<s>"} for entry in SPECIAL]), "twice"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(file: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(file)
