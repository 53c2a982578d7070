"""The tokenizer in GGUF metadata: split rules by name, token kinds, special tokens."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.pieces import PieceReference
from conformance.strategies.texts import texts
from conformance.text_vocabularies import GPT2_WORDS, LLAMA3_WORDS, QWEN2_WORDS, byte_alphabet
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.gguf import definition_from_metadata, stages_from_metadata
from engine.tokenizer.formats.gguf_rules import RULES
from engine.tokenizer.formats.sentencepiece_file import USER_DEFINED, read_sentencepiece
from tests.tokenizer import real
from tests.tokenizer.definitions import BYTE_LEVEL, BYTES_ONLY, definition, reference
from tests.tokenizer.pieces import FIXTURES

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


# -- rules whose model's own tokenizer.json is at hand -------------------------------------------


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("llama-bpe", "llama3"),
        ("qwen2", "qwen3"),
        ("deepseek-v3", "deepseek_v3"),
        ("gpt-4o", "gptoss"),
    ],
)
def test_a_rule_is_that_of_the_models_own_file(
    name: str, owner: str, asset: Callable[[str], Path]
) -> None:
    file = json.loads((asset(f"tokenizer-{owner}") / "tokenizer.json").read_text(encoding="utf-8"))
    *splits_, spelling = file["pre_tokenizer"]["pretokenizers"]
    rule = RULES[name]
    for split in splits_:
        regex = split["pattern"]["Regex"]
        split["pattern"]["Regex"] = regex.replace("\r", r"\r").replace("\n", r"\n")
    assert list(rule.splits[:-1]) == splits_
    assert not spelling["use_regex"] and not spelling["add_prefix_space"]
    assert rule.ignore_merges == file["model"].get("ignore_merges", False)
    assert rule.form == (file["normalizer"] or {}).get("type", None) or not rule.form


@pytest.mark.parametrize("name", RULES)
def test_every_rule_cuts_as_the_reference_and_loses_nothing(name: str) -> None:
    metadata = {**METADATA, "tokenizer.ggml.pre": name}
    file = definition_from_metadata(metadata, "test")
    tokenizer, expected = load(pre=name), reference(file)
    for text in (
        "It's 1234 ＡＢ東京, \n\n  naïve x2² --\t¿Qué?\r\n DON'T ",
        "CamelCase e\u0301e\u0323\u0302 ٣٤٥٦ <=>^~|` ... /\r\n\r\n'LL ʼs \u1112\u1161\u11ab",
    ):
        assert tokenizer.splitter(tokenizer.normalizer(text)) == expected.split(
            expected.normalize(text)
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        form = RULES[name].form
        assert tokenizer.decode(ids) == (unicodedata.normalize(form, text) if form else text)


# -- SentencePiece's vocabularies ------------------------------------------------------------------


def metadata_of(model: bytes, kind: str, **changes: Any) -> dict[str, Any]:
    """What a converter writes of a SentencePiece model."""
    read = read_sentencepiece(model, "test")
    pieces, spaces = read.pieces, read.spaces
    keys = {
        "model": kind,
        "pre": "default",
        "tokens": [
            text.replace("▁", " ") if pieces.kinds[i] == USER_DEFINED else text
            for i, text in enumerate(pieces.texts)
        ],
        "scores": list(pieces.scores),
        "token_type": list(pieces.kinds),
        "add_space_prefix": spaces.add_dummy_prefix,
        "remove_extra_whitespaces": spaces.remove_extra,
        "add_bos_token": False,
        "add_eos_token": False,
        **({"precompiled_charsmap": list(read.charsmap)} if read.charsmap else {}),
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def of_metadata(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(*stages_from_metadata(metadata, "test"), "test")


@pytest.mark.parametrize(("name", "kind"), [("bpe-plain", "llama"), ("unigram-rules", "t5")])
@given(data=st.data())
def test_a_sentencepiece_vocabulary_gives_its_models_tokens(
    name: str, kind: str, data: st.DataObject
) -> None:
    tokenizer, expected = sentencepiece_in_gguf(name, kind)
    text = data.draw(texts(tokenizer.model.vocab))
    ids = tokenizer.encode(text, parse_special=False)
    assert ids == expected.encode(text).ids


@cache
def sentencepiece_in_gguf(name: str, kind: str) -> tuple[Tokenizer, PieceReference]:
    model = (FIXTURES / f"{name}.model").read_bytes()
    return of_metadata(metadata_of(model, kind)), PieceReference(model)


LLAMA = metadata_of((FIXTURES / "bpe-bytes.model").read_bytes(), "llama")


def llama(**changes: Any) -> Tokenizer:
    return of_metadata({**LLAMA, **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}})


def test_user_defined_tokens_are_added_ones_and_runs_of_spaces_are_pieces() -> None:
    tokenizer = llama()
    ids = tokenizer.encode("<sep>    a\n")
    assert [tokenizer.id_to_token(i) for i in ids] == ["<sep>", "▁▁", "▁▁", "▁a", "\n"]
    # As in llama.cpp and transformers a space comes before a text that begins after a token.
    assert tokenizer.decode(ids) == "<sep>     a\n"


def test_what_a_llama_file_leaves_out_is_as_in_llama_cpp() -> None:
    """BOS and a space come first, EOS does not come last; ids 0, 1, 2 are unknown, BOS and EOS."""
    left_out = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")
    metadata = {k: v for k, v in LLAMA.items() if not k.endswith(left_out)}
    tokenizer = of_metadata(metadata)
    ids = tokenizer.encode("  a")
    assert [tokenizer.id_to_token(i) for i in ids] == ["<s>", "▁▁", "▁a"]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    # The first two of the three spaces are one piece, and the prefix is none of the text.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "  a"


def test_t5_ends_with_eos_and_begins_with_nothing() -> None:
    model = (FIXTURES / "unigram-rules.model").read_bytes()
    metadata = metadata_of(model, "t5")
    for switch in ("add_bos_token", "add_eos_token"):
        del metadata[f"tokenizer.ggml.{switch}"]
    assert of_metadata(metadata).encode("the")[-1] == 2


def test_gemma4_merges_pairs_over_sentencepieces_spelling_and_begins_with_bos() -> None:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *bytes_, *"▁ab", "▁a", "ab", "▁ab"]
    tokenizer = of_metadata(
        {
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * 4 + [6] * 256 + [1] * 6,
            "tokenizer.ggml.merges": ["a b", "▁ ab", "▁ a"],
            "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 3,
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    ids = tokenizer.encode("ab ab é a")
    spelled = [tokenizer.id_to_token(i) for i in ids]
    assert spelled == ["<bos>", "ab", "▁ab", "▁", "<0xC3>", "<0xA9>", "▁a"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab ab é a"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores"),
        ({"scores": [0.0]}, "scores"),
        ({"tokens": ["a"] * len(LLAMA["tokenizer.ggml.tokens"])}, "twice"),
        ({"token_type": [1, 9] + [1] * (len(LLAMA["tokenizer.ggml.tokens"]) - 2)}, "type 9"),
        ({"unknown_token_id": 10**6}, "unknown_token_id"),
        ({"model": "t5", "precompiled_charsmap": [1, 2, 3]}, "charsmap"),
        ({"model": "t5", "precompiled_charsmap": ["x"]}, "precompiled_charsmap"),
    ],
)
def test_a_damaged_sentencepiece_vocabulary_is_one_clear_error(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        llama(**changes)


GEMMA_TEXTS = (
    "The capital of France is Paris.",
    "  two   three\n\n\n\tdef f(x):\n\t\treturn  x" + " " * 40 + "!",
    "東京 한국어 Привет مرحبا नमस्ते \U0001f469\u200d\U0001f680 \U00013000",
    "<bos><start_of_turn>user\n<h1>▁▁x</h1><unused5>[multimodal]<eos>",
    "e\u0301 ½ ﬁ \x00\r\n<0x41> ▁ 12345",
)


def test_gemmas_gguf_tokenizes_as_its_tokenizer_json(asset: Callable[[str], Path]) -> None:
    """The one holds scores and the other merges; ids, tokens, offsets and text are the same."""
    expected, tokenizer = real.load(asset("tokenizer-gemma3")), real.load(asset("gemma3-270m"))
    for text in GEMMA_TEXTS:
        for special in (True, False):
            theirs = expected.encode_with_offsets(text, special)
            assert tokenizer.encode_with_offsets(text, special) == theirs
            assert tokenizer.encode(text, special) == theirs.ids
            assert tokenizer.decode(theirs.ids) == expected.decode(theirs.ids)
