"""Tokenizers of byte-level BPE, in the manner of GPT-2's, Llama-3's, Qwen2's and SmolLM2's, and one of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.text_vocabularies.parts import (
    Json,
    byte_level,
    byte_pairs,
    file,
    numbered,
    sequence,
    split,
    template,
)
from conformance.text_vocabularies.training import (
    GPT2_WORDS,
    LLAMA3_WORDS,
    QWEN2_WORDS,
    byte_alphabet,
    train,
)


def _tokenizer(
    merges: list[tuple[str, str]],
    words_without_merges: Sequence[str],
    added: Sequence[tuple[str, Mapping[str, bool]]],
    *,
    normalizer: Json | None = None,
    pre_tokenizer: Json,
    post_processor: Json | None,
    ignore_merges: bool = False,
    spaced_merges: bool = True,
    missing_bytes: Sequence[int] = (),
) -> Json:
    """Return the object of a tokenizer.json."""
    spelled = [c for byte, c in enumerate(byte_alphabet()) if byte not in missing_bytes]
    vocab = numbered([*spelled, *(left + right for left, right in merges), *words_without_merges])
    return file(
        byte_pairs(
            vocab,
            merges,
            spaced=spaced_merges,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            ignore_merges=ignore_merges,
        ),
        vocab,
        added,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        post_processor=post_processor,
        decoder=byte_level(trim_offsets=True, use_regex=True),
    )


def _split_then_bytes(pattern: str) -> Json:
    return sequence(
        "pretokenizers",
        split(pattern, "Isolated"),
        byte_level(trim_offsets=False, use_regex=False),
    )


def gpt2() -> Json:
    return _tokenizer(
        train(GPT2_WORDS, 240),
        # Tokens that no merge leads to; only who ignores the merges ever sees them.
        ["Ġthings", "zzz"],
        [("<|endoftext|>", {})],
        pre_tokenizer=byte_level(trim_offsets=True, use_regex=True),
        post_processor=byte_level(trim_offsets=True, use_regex=True),
    )


def llama3() -> Json:
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
    definition["post_processor"] = sequence(
        "processors",
        byte_level(trim_offsets=False, use_regex=True),
        template(
            "<|begin_of_text|> $A",
            "<|begin_of_text|> $A <|begin_of_text|> $B:1",
            {begin["content"]: [(begin["content"], begin["id"])]},
        ),
    )
    return definition


def qwen2() -> Json:
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
        post_processor=byte_level(trim_offsets=False, use_regex=False),
        spaced_merges=False,
    )


def smollm2() -> Json:
    return _tokenizer(
        train(GPT2_WORDS, 200, without_digits=True),
        # " 2" merged would show whether digits are cut off before words are.
        ["Ġ2", "zzz"],
        [("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {}), ("<repo_name>", {})],
        pre_tokenizer=sequence(
            "pretokenizers",
            {"type": "Digits", "individual_digits": True},
            byte_level(trim_offsets=True, use_regex=True),
        ),
        post_processor=None,
        # As in the real one, bytes that the training text never had are no tokens.
        missing_bytes=(0x04, 0x06, 0xC0, 0xC1, 0xF5, 0xFF),
    )


def ascii_only() -> Json:
    """A vocabulary in which every sequence of ids is a clean text: no token is part of a character."""
    printable = range(0x20, 0x7F)
    spelled = {c for byte, c in enumerate(byte_alphabet()) if byte in printable}
    merges = [pair for pair in train(GPT2_WORDS, 240) if spelled.issuperset("".join(pair))]
    return _tokenizer(
        merges,
        [],
        [("<|endoftext|>", {}), ("<|im_end|>", {})],
        pre_tokenizer=byte_level(trim_offsets=True, use_regex=True),
        post_processor=None,
        missing_bytes=[byte for byte in range(256) if byte not in printable],
    )


def pieces() -> Json:
    """What the format offers and the other four leave out: each way to split, a prefix space, an EOS."""
    definition = _tokenizer(
        train(GPT2_WORDS, 180),
        ["zzz"],
        [
            ("<s>", {}),
            ("</s>", {}),
            # Its characters are partly in the byte alphabet: it must be spelled as a whole.
            ("<naïve 東>", {"special": False}),
        ],
        normalizer=sequence("normalizers", {"type": "NFKD"}, {"type": "NFC"}),
        pre_tokenizer=sequence(
            "pretokenizers",
            split("-", "Removed", kind="String"),
            split(r"[,;.]", "MergedWithPrevious"),
            split(r"\p{Lu}", "MergedWithNext"),
            split("=", "Contiguous", kind="String"),
            split(r"[^#]+", "Removed", invert=True),
            byte_level(add_prefix_space=True, trim_offsets=True, use_regex=False),
        ),
        post_processor=None,
    )
    begin, end, _ = definition["added_tokens"]
    definition["post_processor"] = sequence(
        "processors",
        byte_level(add_prefix_space=True, trim_offsets=True, use_regex=True),
        template(
            "<s> $A </s>",
            "$A $B:1",
            {token["content"]: [(token["content"], token["id"])] for token in (begin, end)},
        ),
    )
    return definition
