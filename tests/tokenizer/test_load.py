"""Reading tokenizer.json: every spelling that files use, and one clear error for all else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelFileError, RequestError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.models import read_model
from tests.tokenizer.definitions import BYTE_LEVEL, added, assert_encodes_alike, definition, ours


def with_model(**options: Any) -> dict[str, Any]:
    file = definition(("a", "b"))
    return {**file, "model": {**file["model"], **options}}


def unigram(**fields: Any) -> dict[str, Any]:
    return definition(model={"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0, **fields})


def word_piece(**fields: Any) -> dict[str, Any]:
    model = {
        "type": "WordPiece",
        "vocab": {"a": 0},
        "unk_token": "a",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    return definition(model={**model, **fields})


def word_level(**fields: Any) -> dict[str, Any]:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    return definition(model={**model, **fields})


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (definition(normalizer={"type": "Append", "append": "x"}), "Append"),
        (definition(normalizer={"type": "Sequence", "normalizers": [{"type": "Odd"}]}), "Odd"),
        (definition(normalizer={"normalizers": []}), "without a type"),
        (definition(pre_tokenizer={"type": "Words"}), "Words"),
        (definition(post_processor={"type": "BertProcessing"}), "BertProcessing"),
        (definition(decoder={"type": "CTC"}), "CTC"),
        (definition(decoder={"type": "Sequence", "decoders": [{"type": "Odd"}]}), "Odd"),
        (definition(model={"type": "Bigram", "vocab": {}}), "Bigram"),
        (with_model(type=["BPE"]), "BPE"),
        (with_model(dropout=0.1), "dropout"),
        (with_model(max_length=3), "max_length"),
        (with_model(byte_fallback=True, end_of_word_suffix="w"), "byte_fallback"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_refused_by_name(file: dict[str, Any], name: str) -> None:
    """Passing over it would give ids that are almost right."""
    with pytest.raises(ModelFileError, match=name):
        ours(file)


@pytest.mark.parametrize(
    "file",
    [
        definition(normalizer=7),
        definition(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}
        ),
        definition(pre_tokenizer={"type": "Split", "pattern": {}, "behavior": "Isolated"}),
        definition(pre_tokenizer={"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"}),
        definition(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\h"}, "behavior": "Isolated"}
        ),
        definition(model=None),
        definition(added_tokens=[{"id": 1}]),
        definition(added_tokens=[added("a", 3)]),
        definition(added_tokens=[added("<a>", -1)]),
        with_model(vocab={"a": "0"}),
        with_model(vocab={"a": -1}),
        with_model(vocab={"a": True}),
        with_model(vocab=["a"]),
        with_model(merges=["a b c"]),
        with_model(merges=[["a"]]),
        with_model(merges=[["a", "x"]]),
        with_model(merges=[7]),
        with_model(merges=7),
        with_model(vocab={"a": 0, "b": 0}),
        with_model(vocab={"a": 1 << 32}),
        with_model(vocab={"\ud800": 0}, merges=[]),
        with_model(merges=[["a", "b"], "a b"]),
        with_model(merges=None),
        with_model(unk_token=7),
        with_model(byte_fallback="yes"),
        with_model(dropout="0"),
        unigram(vocab={"a": 0}),
        unigram(vocab=["a"]),
        unigram(vocab=[["a", -1.0, 0]]),
        unigram(vocab=[["a", "-1"]]),
        unigram(vocab=[["a", True]]),
        unigram(vocab=[["a", float("nan")]]),
        unigram(vocab=[["a", float("-inf")]]),
        unigram(vocab=[["a", 10**400]]),
        unigram(vocab=[[7, -1.0]]),
        unigram(vocab=[["a", -1.0], ["a", -2.0]]),
        unigram(vocab=[], unk_id=0),
        unigram(unk_id=-1),
        unigram(unk_id=1),
        unigram(unk_id=0.0),
        unigram(vocab=None),
        word_piece(vocab={"a": 1.0}),
        word_piece(unk_token=None),
        word_piece(continuing_subword_prefix=None),
        word_piece(max_input_chars_per_word=-1),
        word_piece(max_input_chars_per_word=True),
        word_level(unk_token=None),
        word_level(vocab=[]),
    ],
)
def test_damage_is_one_clear_error(file: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"^test: "):
        ours(file)


def test_both_spellings_of_merges_load() -> None:
    spaced, listed = with_model(merges=["a b"]), with_model(merges=[["a", "b"]])
    assert ours(spaced).encode("ab") == ours(listed).encode("ab") == [256]


def test_files_of_gpt2s_time_leave_the_models_type_out() -> None:
    file = definition(("a", "b"))
    model = {key: file["model"][key] for key in ("vocab", "merges")}
    assert ours({**file, "model": model}).encode("ab") == [256]


@pytest.mark.parametrize("file", [unigram(), word_piece(), word_level()])
def test_without_a_type_the_fields_tell_which_model_it_is(file: dict[str, Any]) -> None:
    untyped = {key: value for key, value in file["model"].items() if key != "type"}
    model = read_model(file["model"], "test")
    assert type(read_model(untyped, "test")) is type(model)
    assert_encodes_alike({**file, "model": untyped}, "aa")


def test_the_first_line_of_a_merges_file_is_no_merge() -> None:
    assert ours(with_model(merges=["#version: 0.2", "a b"])).encode("ab") == [256]


def test_a_dropout_of_nothing_is_none() -> None:
    assert ours(with_model(dropout=0)).encode("ab") == ours(with_model()).encode("ab")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_folder_without_a_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_knows_its_tokens(tmp_path: Path) -> None:
    file = definition(("a", "b"), added_tokens=[added("<s>", 257, special=True)])
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    tokenizer = Tokenizer.load(str(tmp_path))
    assert tokenizer.vocab_size == 258
    assert (tokenizer.token_to_id("ab"), tokenizer.token_to_id("<s>")) == (256, 257)
    assert (tokenizer.id_to_token(256), tokenizer.id_to_token(257)) == ("ab", "<s>")
    assert tokenizer.token_to_id("x y") is None
    assert tokenizer.id_to_token(258) is None
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (None, ())


def test_a_text_that_is_no_string_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="string"):
        ours(definition()).encode(b"bytes")  # type: ignore[arg-type]


def test_a_pattern_with_lines_reads_them_as_the_reference_does() -> None:
    """In the reference's syntax ^ and $ stand at every line, not at the text's ends alone."""
    from tests.tokenizer.definitions import assert_encodes_alike

    pattern = {"Regex": "^a+|b+$"}
    steps = [{"type": "Split", "pattern": pattern, "behavior": "Removed"}, BYTE_LEVEL]
    steps[0]["invert"] = False
    file = definition(pre_tokenizer={"type": "Sequence", "pretokenizers": steps})
    assert_encodes_alike(file, "aab\naabb\nba bb\n\nab")
