"""Tokenizers of byte-level BPE, in the manner of GPT-2's, Llama-3's, Qwen2's and SmolLM2's, and one of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.text_vocabularies.training import (
    GPT2_WORDS,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    byte_alphabet,
    train,
)


def _added(token_id: int, content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **plain, "special": True, **flags}


def _tokenizer(
    merges: list[tuple[str, str]],
    words_without_merges: Sequence[str],
    added: Sequence[tuple[str, Mapping[str, bool]]],
    *,
    normalizer: Any = None,
    pre_tokenizer: Any,
    post_processor: Any,
    ignore_merges: bool = False,
    spaced_merges: bool = True,
    missing_bytes: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the object of a tokenizer.json."""
    spelled = [c for byte, c in enumerate(byte_alphabet()) if byte not in missing_bytes]
    tokens = {*spelled, *(left + right for left, right in merges), *words_without_merges}
    vocab = {token: i for i, token in enumerate(sorted(tokens))}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(len(vocab) + i, content, **flags) for i, (content, flags) in enumerate(added)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": _byte_level(trim_offsets=True, use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": [" ".join(pair) if spaced_merges else list(pair) for pair in merges],
        },
    }


def _byte_level(trim_offsets: bool, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def _split_then_bytes(pattern: str) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "type": "Sequence",
        "pretokenizers": [split, _byte_level(trim_offsets=False, use_regex=False)],
    }


def gpt2() -> dict[str, Any]:
    return _tokenizer(
        train(GPT2_WORDS, 240),
        # Tokens that no merge leads to; only who ignores the merges ever sees them.
        ["Ġthings", "zzz"],
        [("<|endoftext|>", {})],
        pre_tokenizer=_byte_level(trim_offsets=True, use_regex=True),
        post_processor=_byte_level(trim_offsets=True, use_regex=True),
    )


def llama3() -> dict[str, Any]:
    names = ("<|begin_of_text|>", "<|start|>", "<|end|>", "<|eot|>", "<|eot|>x", "<|eo")
    merges = train(LLAMA3_WORDS, 230)
    definition = _tokenizer(
        merges,
        ["Ġthings", "zzz", "ĠViá»ĩts"],
        [(name, {}) for name in names],
        pre_tokenizer=_split_then_bytes(LLAMA3_WORDS),
        post_processor=None,
        ignore_merges=True,
    )
    begin, *_ = definition["added_tokens"]
    bos = {"SpecialToken": {"id": begin["content"], "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    definition["post_processor"] = {
        "type": "Sequence",
        "processors": [
            _byte_level(trim_offsets=False, use_regex=True),
            {
                "type": "TemplateProcessing",
                "single": [bos, first],
                "pair": [bos, first, bos, second],
                "special_tokens": {
                    begin["content"]: {
                        "id": begin["content"],
                        "ids": [begin["id"]],
                        "tokens": [begin["content"]],
                    }
                },
            },
        ],
    }
    return definition


def qwen2() -> dict[str, Any]:
    word = {"special": False}
    return _tokenizer(
        train(QWEN2_WORDS, 220, without_digits=True),
        ["Ġthings", "zzz"],
        [
            ("<|endoftext|>", {}),
            ("<|im_start|>", {}),
            ("<|im_end|>", {}),
            ("<think>", word),
            ("</think>", word),
            ("<mask>", {"lstrip": True}),
            ("<sep>", {"rstrip": True, **word}),
            ("whole", {"single_word": True, **word}),
            ("élan", {"normalized": True, **word}),
        ],
        normalizer={"type": "NFC"},
        pre_tokenizer=_split_then_bytes(QWEN2_WORDS),
        post_processor=_byte_level(trim_offsets=False, use_regex=False),
        spaced_merges=False,
    )


def smollm2() -> dict[str, Any]:
    return _tokenizer(
        train(GPT2_WORDS, 200, without_digits=True),
        # " 2" merged would show whether digits are cut off before words are.
        ["Ġ2", "zzz"],
        [("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {}), ("<repo_name>", {})],
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                _byte_level(trim_offsets=True, use_regex=True),
            ],
        },
        post_processor=None,
        # As in the real one, bytes that the training text never had are no tokens.
        missing_bytes=(0x04, 0x06, 0xC0, 0xC1, 0xF5, 0xFF),
    )


def ascii_only() -> dict[str, Any]:
    """A vocabulary in which every sequence of ids is a clean text: no token is part of a character."""
    printable = range(0x20, 0x7F)
    spelled = {c for byte, c in enumerate(byte_alphabet()) if byte in printable}
    merges = [pair for pair in train(GPT2_WORDS, 240) if spelled.issuperset("".join(pair))]
    return _tokenizer(
        merges,
        [],
        [("<|endoftext|>", {}), ("<|im_end|>", {})],
        pre_tokenizer=_byte_level(trim_offsets=True, use_regex=True),
        post_processor=None,
        missing_bytes=[byte for byte in range(256) if byte not in printable],
    )


def pieces() -> dict[str, Any]:
    """What the format offers and the other four leave out: each way to split, a prefix space, an EOS."""

    def split(pattern: dict[str, str], behavior: str, invert: bool = False) -> dict[str, Any]:
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    definition = _tokenizer(
        train(GPT2_WORDS, 180),
        ["zzz"],
        [
            ("<s>", {}),
            ("</s>", {}),
            # Its characters are partly in the byte alphabet: it must be spelled as a whole.
            ("<naïve 東>", {"special": False}),
        ],
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]},
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                split({"String": "-"}, "Removed"),
                split({"Regex": r"[,;.]"}, "MergedWithPrevious"),
                split({"Regex": r"\p{Lu}"}, "MergedWithNext"),
                split({"String": "="}, "Contiguous"),
                split({"Regex": r"[^#]+"}, "Removed", invert=True),
                _byte_level(trim_offsets=True, use_regex=False) | {"add_prefix_space": True},
            ],
        },
        post_processor=None,
    )
    begin, end, _ = definition["added_tokens"]
    definition["post_processor"] = {
        "type": "Sequence",
        "processors": [
            _byte_level(trim_offsets=True, use_regex=True) | {"add_prefix_space": True},
            {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": begin["content"], "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": end["content"], "type_id": 0}},
                ],
                "pair": [
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ],
                "special_tokens": {
                    token["content"]: {
                        "id": token["content"],
                        "ids": [token["id"]],
                        "tokens": [token["content"]],
                    }
                    for token in (begin, end)
                },
            },
        ],
    }
    return definition
