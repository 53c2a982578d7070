"""Tokenizers of whole words and word pieces, and chains of all the components that the others leave out."""

from __future__ import annotations

from collections import Counter

import regex

from conformance.text_vocabularies.parts import (
    Json,
    byte_level,
    byte_pairs,
    file,
    metaspace,
    numbered,
    replace,
    sequence,
    split,
    template,
)
from conformance.text_vocabularies.training import CORPUS, byte_alphabet, train_on

_WORDS = regex.findall(r"\w+|[^\w\s]", CORPUS)
_ASCII = [chr(code) for code in range(0x21, 0x7F)]


def _bert(ids: dict[str, int]) -> Json:
    return {
        "type": "BertProcessing",
        "sep": ["[SEP]", ids["[SEP]"]],
        "cls": ["[CLS]", ids["[CLS]"]],
    }


def wordpiece() -> Json:
    """BERT's: everything in small letters, the longest piece first, a word of unknown parts unknown."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [[word[0], *("##" + c for c in word[1:])] for word in map(str.lower, _WORDS)]
    merges = train_on(words, 160, prefix="##")
    symbols = {symbol for word in words for symbol in word if symbol.removeprefix("##") < "\u0300"}
    tokens = [*symbols, *_ASCII, *(left + right.removeprefix("##") for left, right in merges)]
    vocab = numbered([*tokens, "東", "é", "##\u0301"], specials)
    return file(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 40,
            "vocab": vocab,
        },
        vocab,
        [*((name, {}) for name in specials[:-1]), ("[MASK]", {"lstrip": True})],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_bert(vocab),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def letters() -> Json:
    """The first GPT's and CLIP's: words end in </w>; what is unknown is so letter by letter."""
    ascii_words = [word.lower() for word in _WORDS if word.isascii()]
    words = [[*word[:-1], word[-1] + "</w>"] for word in ascii_words]
    merges = train_on(words, 150)
    symbols = {*_ASCII, *(c + "</w>" for c in _ASCII)}
    symbols -= {"j", "j</w>", "~</w>", "7"}
    tokens = [*symbols, *(left + right for left, right in merges)]
    specials = ["<unk>", "<s>", "</s>"]
    vocab = numbered(tokens, specials)
    options: Json = {"unk_token": "<unk>", "end_of_word_suffix": "</w>"}
    return file(
        byte_pairs(vocab, merges, **options),
        vocab,
        [
            *((name, {}) for name in specials),
            ("<Mask>", {"lstrip": True, "rstrip": True, "normalized": True}),
        ],
        normalizer=sequence(
            "normalizers",
            {"type": "NFD"},
            {"type": "StripAccents"},
            {"type": "Lowercase"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
        ),
        pre_tokenizer=sequence(
            "pretokenizers",
            {"type": "WhitespaceSplit"},
            {"type": "Digits", "individual_digits": False},
            {"type": "Punctuation", "behavior": "Isolated"},
        ),
        post_processor={
            "type": "RobertaProcessing",
            "sep": ["</s>", vocab["</s>"]],
            "cls": ["<s>", vocab["<s>"]],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        decoder={"type": "BPEDecoder", "suffix": "</w>"},
    )


def words() -> Json:
    """Whole words, cut wherever the script changes; decoded with a space between any two."""
    counts = Counter(_WORDS)
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    marks = [":", ";", ",", ".", "(", ")", "--", "…", "²", "isn't"]
    vocab = numbered([*counts, *marks, "東京", "cafe", "naive", "0"], specials)
    definition = file(
        {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
        vocab,
        [(name, {}) for name in specials],
        normalizer=sequence(
            "normalizers",
            {
                "type": "BertNormalizer",
                "clean_text": False,
                "handle_chinese_chars": False,
                "strip_accents": True,
                "lowercase": False,
            },
            {"type": "NFKD"},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            replace(r"\d+", "0", kind="Regex"),
        ),
        pre_tokenizer=sequence(
            "pretokenizers",
            {"type": "UnicodeScripts"},
            {"type": "CharDelimiterSplit", "delimiter": "-"},
            {"type": "Punctuation", "behavior": "MergedWithPrevious"},
            {"type": "Whitespace"},
        ),
        post_processor=template(
            "[CLS] $A ends",
            "$B:1 [CLS]:2 $A ends:3",
            {
                "[CLS]": [("[CLS]", vocab["[CLS]"])],
                "ends": [("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"])],
            },
        ),
    )
    # Settings of a training run: a tokenizer that cut its prompts by them would lose text.
    definition["truncation"] = {
        "direction": "Right",
        "max_length": 6,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    definition["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[UNK]",
    }
    return definition


def spelled_bytes() -> Json:
    """The byte alphabet as a normalizer, before words are cut; every word a token if it is one."""
    alphabet = byte_alphabet()

    def spell(text: str) -> str:
        return "".join(alphabet[byte] for byte in text.encode())

    words = regex.findall(r"Ġ?[^Ġ]+|Ġ", spell(CORPUS))
    merges = train_on(map(tuple, words), 150)
    tokens = [*alphabet, *(left + right for left, right in merges), "Ġthings", "zzz"]
    vocab = numbered(tokens, ["<s>", "</s>"])
    options: Json = {"ignore_merges": True, "unk_token": "</s>"}
    return file(
        byte_pairs(vocab, merges, **options),
        vocab,
        [
            ("<s>", {}),
            ("</s>", {"rstrip": True}),
            # As it is spelled after the normalizer.
            ("größe", {"special": False, "normalized": True}),
        ],
        normalizer=sequence(
            "normalizers", {"type": "Prepend", "prepend": " "}, {"type": "ByteLevel"}
        ),
        pre_tokenizer=split("Ġ?[^Ġ]+|Ġ", "Removed", invert=True),
        post_processor=sequence(
            "processors",
            byte_level(trim_offsets=True, use_regex=False),
            {
                "type": "BertProcessing",
                "sep": ["</s>", vocab["</s>"]],
                "cls": ["<s>", vocab["<s>"]],
            },
        ),
        decoder=sequence(
            "decoders",
            replace("[!?]+", "!", kind="Regex"),
            # Of one token at a time, where the library does not panic at a text that is too short.
            {"type": "Strip", "content": "Ġ", "start": 0, "stop": 1},
            byte_level(trim_offsets=True, use_regex=True),
        ),
    )


def inner_pieces() -> Json:
    """Byte-pair encoding whose symbols inside a word begin with ##, and a space spelled _."""
    known = ["_" + word for word in _WORDS if max(word) < "\u0300"]
    words = [[word[0], *("##" + c for c in word[1:])] for word in known]
    merges = train_on(words, 140, prefix="##")
    symbols = {symbol for word in words for symbol in word}
    symbols |= {*_ASCII, *("##" + c for c in _ASCII)} - {"Q", "##Q", "##j", "##7", "7"}
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    tokens = [*symbols, *(left + right.removeprefix("##") for left, right in merges)]
    vocab = numbered(tokens, specials)
    options: Json = {"unk_token": "[UNK]", "fuse_unk": True, "continuing_subword_prefix": "##"}
    return file(
        byte_pairs(vocab, merges, spaced=False, **options),
        vocab,
        [(name, {}) for name in specials],
        normalizer=sequence("normalizers", {"type": "NFD"}, {"type": "NFC"}),
        pre_tokenizer=sequence(
            "pretokenizers",
            metaspace("never", replacement="_"),
            {"type": "Punctuation", "behavior": "Contiguous"},
        ),
        post_processor=sequence(
            "processors",
            byte_level(add_prefix_space=True, trim_offsets=True, use_regex=True),
            {
                "type": "RobertaProcessing",
                "sep": ["[SEP]", vocab["[SEP]"]],
                "cls": ["[CLS]", vocab["[CLS]"]],
                "trim_offsets": False,
                "add_prefix_space": True,
            },
        ),
        decoder=sequence(
            "decoders",
            {"type": "WordPiece", "prefix": "##", "cleanup": False},
            metaspace("never", replacement="_"),
        ),
    )
