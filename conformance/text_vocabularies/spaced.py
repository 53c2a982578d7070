"""Tokenizers that spell a space ▁: Llama-2's and Gemma's byte-pair encodings, and Unigram models."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from math import log

import regex

from conformance.charsmap import charsmap
from conformance.text_vocabularies.parts import (
    Json,
    byte_pairs,
    file,
    metaspace,
    numbered,
    replace,
    sequence,
    split,
    template,
)
from conformance.text_vocabularies.training import CORPUS, train_on

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPACED = CORPUS.replace(" ", "▁")


def _words() -> list[str]:
    """Return the words of the corpus, each with the one space before it; longer runs stand alone."""
    return [word for word in regex.findall("▁?[^▁\n]+|▁+(?=▁)|\n+", "▁" + _SPACED) if word]


def _common_characters(words: Sequence[str]) -> list[str]:
    """Return the characters that are tokens; the others are left to their bytes."""
    counts = Counter("".join(words))
    return [character for character, count in counts.items() if count > 1 or character < "\x7f"]


def llama2() -> Json:
    """Every text begins with a space; what is no token is spelled in bytes, or is unknown."""
    words, specials = _words(), ["<unk>", "<s>", "</s>"]
    characters = _common_characters([word for word in words if "\n" not in word])
    known = [tuple(word) for word in words if set(word) <= {*characters}]
    merges = train_on(known, 160)
    # No character of four bytes can be spelled: it is unknown, and its neighbours with it.
    spelled = [byte for byte in _BYTES if byte not in _BYTES[0xF0:0xF8]]
    tokens = [*characters, *(left + right for left, right in merges), "zzz"]
    vocab = numbered(tokens, [*specials, *spelled])
    options: Json = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return file(
        byte_pairs(vocab, merges, **options),
        vocab,
        [(content, {}) for content in specials],
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        post_processor=template("<s> $A", "<s> $A <s>:1 $B:1", {"<s>": [("<s>", vocab["<s>"])]}),
        decoder=sequence(
            "decoders",
            replace("▁", " "),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
    )


def gemma() -> Json:
    """No space at the beginning; runs of white space are added tokens, and all bytes are tokens."""
    words, specials = _words(), ["<pad>", "<eos>", "<bos>", "<unk>"]
    characters = [*_common_characters(words), "\n", "\t"]
    known = [tuple(word) for word in words if set(word) <= {*characters}]
    merges = train_on(known, 160)
    tokens = [*characters, *(left + right for left, right in merges), "\n\n", "▁▁"]
    vocab = numbered(tokens, [*specials, *_BYTES])
    plain = {"special": False}
    options: Json = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return file(
        byte_pairs(vocab, merges, spaced=False, **options),
        vocab,
        [
            *((content, {}) for content in specials),
            ("\n\n", plain),
            ("\t", plain),
            ("▁▁", plain | {"normalized": True}),
            ("▁▁▁▁", plain | {"normalized": True}),
            ("<start_of_turn>", {}),
            ("<table>", plain),
        ],
        normalizer=replace(" ", "▁"),
        pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"),
        post_processor=template(
            "<bos> $A", "<bos> $A <bos>:1 $B:1", {"<bos>": [("<bos>", vocab["<bos>"])]}
        ),
        decoder=sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
    )


def _pieces(count: int) -> list[list[object]]:
    """Return the commonest parts of words with the logarithm of their share, commonest first."""
    counts: Counter[str] = Counter()
    for word in _words():
        if "\n" not in word:
            ends = range(1, min(len(word), 7) + 1)
            counts.update(word[start : start + n] for start in range(len(word)) for n in ends)
    # Slices run over the end of a word and come out shorter: that favours the ends of words.
    longer = [piece for piece in counts if len(piece) > 1 and counts[piece] > 2]
    longer.sort(key=lambda piece: (-counts[piece] * len(piece), piece))
    single = [
        piece for piece in counts if len(piece) == 1 and (counts[piece] > 7 or piece < "\x7f")
    ]
    kept = sorted([*single, *longer[:count]], key=lambda piece: (-counts[piece], piece))
    total = counts.total()
    return [[piece, round(log(counts[piece] / total), 4)] for piece in kept]


def _compatible() -> str:
    """Return a table that rewrites as the compatibility form does, and white space to spaces."""
    written = "ﬁ①②ＡｂⅧ½²³…\u212b\u0344\u00a0\u2003\u3000"
    table = {character: unicodedata.normalize("NFKC", character) for character in written}
    table |= {"e\u0301": "é", "\u1112\u1161\u11ab": "한", "\u200b": "", "\ufeff": "", "\x7f": ""}
    # Of two entries that begin alike the shorter one counts.
    table |= {"a\u0300": "à", "a\u0300\u0316": "never"}
    return charsmap(table | dict.fromkeys("\t\n\r\u0085\u2028", " "))


def unigram() -> Json:
    """A Unigram model in the manner of T5's and XLM-R's, with a table of characters."""
    specials: list[list[object]] = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    vocab = [*specials, *_pieces(260), ["zzz", -11.0]]
    ids = {str(piece): i for i, (piece, _) in enumerate(vocab)}
    return file(
        {"type": "Unigram", "unk_id": ids["<unk>"], "vocab": vocab, "byte_fallback": False},
        ids,
        [
            *((str(piece), {}) for piece, _ in specials),
            ("<mask>", {"lstrip": True}),
            ("Ångström", {"special": False, "normalized": True, "single_word": True}),
        ],
        normalizer=sequence(
            "normalizers",
            {"type": "Precompiled", "precompiled_charsmap": _compatible()},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            replace(" {2,}", " ", kind="Regex"),
        ),
        pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always")),
        post_processor=template("$A </s>", "$A </s> $B </s>", {"</s>": [("</s>", ids["</s>"])]}),
        decoder=metaspace("always"),
    )


def unigram_bytes() -> Json:
    """A Unigram model with byte fallback, whose words are whole texts and begin with ▁ only once."""
    specials: list[list[object]] = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    vocab = [*specials, *([byte, -12.0] for byte in _BYTES), *_pieces(200)]
    ids = {str(piece): i for i, (piece, _) in enumerate(vocab)}
    return file(
        {"type": "Unigram", "unk_id": ids["<unk>"], "vocab": vocab, "byte_fallback": True},
        ids,
        [*((str(piece), {}) for piece, _ in specials), ("<sep>", {"special": False})],
        normalizer={"type": "NFKC"},
        pre_tokenizer=sequence(
            "pretokenizers",
            metaspace("first", cut=False),
            split(r"\p{N}", "MergedWithNext"),
            split("▁▁", "Isolated", kind="String"),
        ),
        post_processor=template(
            "<s> $A </s>",
            "<s> $A </s> </s> $B:1 </s>:1",
            {name: [(name, ids[name])] for name in ("<s>", "</s>")},
        ),
        decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace("first")),
    )
