"""The tokenizer in GGUF metadata: split rules by name, token kinds, special tokens."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.text_vocabularies import GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS, byte_alphabet
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.gguf import stages_from_metadata
from tests.tokenizer.definitions import BYTE_LEVEL, BYTES_ONLY, definition, reference

TOKENS = [*byte_alphabet(), "ab", "<s>", "</s>", "<tool>", "[PAD260]", "Ġ2", "wholly"]
KINDS = [*[1] * 257, 3, 3, 4, 5, 1, 1]
METADATA = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 257,
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.padding_token_id": 258,
    "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ pad_token }}",
}


def load(**changes: Any) -> Tokenizer:
    metadata = {**METADATA, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return Tokenizer(*stages_from_metadata(metadata, "test"), "test")


def splits(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, BYTES_ONLY]}


DIGITS = {"type": "Digits", "individual_digits": True}


@pytest.mark.parametrize(
    ("name", "pre_tokenizer", "normalizer"),
    [
        ("gpt-2", splits(GPT2_WORDS), None),
        ("smollm", {"type": "Sequence", "pretokenizers": [DIGITS, BYTE_LEVEL]}, None),
        ("llama-bpe", splits(LLAMA3_WORDS), None),
        ("qwen2", splits(QWEN2_WORDS), {"type": "NFC"}),
    ],
)
def test_a_rule_splits_as_the_models_own_file(
    name: str, pre_tokenizer: dict[str, Any], normalizer: dict[str, Any] | None
) -> None:
    expected = reference(definition(pre_tokenizer=pre_tokenizer, normalizer=normalizer))
    tokenizer = load(pre=name)
    for text in (
        "  two\n\n  1234 x2²½ 'LL don't\r\n é e\u0301\t\t",
        "a  12  b\n 3",
        "東京、한글! \u1112\u1161\u11ab -- _x_ 'ſ",
    ):
        assert tokenizer.normalizer(text) == expected.normalize(text)
        assert tokenizer.splitter(text) == expected.split(text)


def test_digits_are_cut_off_before_words_in_smollm() -> None:
    """GPT-2's rule alone leaves one of two spaces with the digit: other ids for the same text."""
    assert load(pre="smollm").splitter("  2") == ["ĠĠ", "2"]
    assert load(pre="gpt-2").splitter("  2") == ["Ġ", "Ġ2"]


def test_only_llama3_takes_whole_words_and_begins_with_bos_unasked() -> None:
    assert load(pre="llama-bpe").encode("wholly") == [257, 262]
    assert load(pre="llama-bpe", add_bos_token=False).encode("wholly") == [262]
    assert 262 not in load(pre="gpt-2").encode("wholly")
    assert load(pre="gpt-2", add_bos_token=True, add_eos_token=True).encode("ab") == [257, 256, 258]


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    tokenizer = load()
    assert tokenizer.encode("<s>ab<tool></s>") == [257, 256, 259, 258]
    assert tokenizer.decode([257, 256, 259, 258], skip_special_tokens=True) == "ab<tool>"


def test_unused_rows_have_no_token() -> None:
    tokenizer = load()
    assert tokenizer.id_to_token(260) is None
    assert tokenizer.decode([256, 260]) == "ab"
    assert 260 not in tokenizer.encode("[PAD260]")


def test_special_tokens_and_every_end_token_are_known() -> None:
    tokenizer = load(eot_token_id=259)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (257, (258, 259))
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "<s>x</s>"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, "None"),
        ({"pre": "bloom"}, "'bloom'"),
        ({"pre": None}, "None"),
        ({"pre": ["gpt-2"]}, "gpt-2"),
        ({"tokens": [1, 2]}, "damaged"),
        ({"tokens": None}, "damaged"),
        ({"token_type": [1]}, "damaged"),
        ({"token_type": 1}, "damaged"),
        ({"merges": ["a"]}, "merges"),
        ({"merges": ["a x"]}, "merges"),
        ({"bos_token_id": 10**9}, "bos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"eos_token_id": "2"}, "eos_token_id"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(**changes)
