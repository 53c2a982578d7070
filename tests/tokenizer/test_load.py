"""Reading tokenizer.json: every spelling that files use, and one clear error for all else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelFileError, RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import BYTE_LEVEL, added, definition, ours

UNKNOWN_IS_A = {"unk_token": "a"}


def with_model(**options: Any) -> dict[str, Any]:
    file = definition(("a", "b"))
    return {**file, "model": {**file["model"], **options}}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (definition(normalizer={"type": "Append", "append": "x"}), "Append"),
        (definition(normalizer={"type": "Sequence", "normalizers": [{"type": "Odd"}]}), "Odd"),
        (definition(normalizer={"normalizers": []}), "without a type"),
        (definition(pre_tokenizer={"type": "Words"}), "Words"),
        (definition(post_processor={"type": "BertProcessing"}), "BertProcessing"),
        (definition(decoder={"type": "ByteFallback"}), "ByteFallback"),
        (definition(decoder={"type": "Sequence", "decoders": [{"type": "Fuse"}]}), "Fuse"),
        (definition(decoder=None), "decoder"),
        (definition(model={"type": "Unigram", "vocab": []}), "Unigram"),
        (definition(model={"type": "WordPiece", "vocab": {}}), "WordPiece"),
        (with_model(byte_fallback=True), "byte_fallback"),
        (with_model(dropout=0.1), "dropout"),
        (with_model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
        (with_model(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (with_model(**UNKNOWN_IS_A, vocab={"a": 0, "b": 1, "ab": 2}), "unk_token"),
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


def test_an_unknown_token_cannot_occur_where_every_byte_is_a_token() -> None:
    assert ours(with_model(**UNKNOWN_IS_A)).encode("ab") == [256]


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    """They are left over from a training run; cutting prompts to them would lose text silently."""
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    file = definition(truncation=truncation, padding={"strategy": {"Fixed": 9}})
    assert len(ours(file).encode("abcdef")) == 6


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
