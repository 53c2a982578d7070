"""Reads a tiktoken rank file into the object of a tokenizer.json.

The file holds tokens and their ranks alone: a line is a token in base64, a space, and its rank,
which is its id and the order of merging. How words are cut and which special tokens there are is
known for the files named here; special tokens can also come from a tokenizer_config.json.
Source: tiktoken's own list of encodings; Llama 3's and Llama 4's tokenizer.py by Meta.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.parts import (
    BYTES,
    CL100K_WORDS,
    O200K_WORDS,
    Definition,
    added_token,
    byte_level,
    byte_pairs,
    spelled,
    split_at,
)
from engine.tokenizer.formats.wishes import NONE, Wishes
from engine.tokenizer.models.ranks import TokenRanks
from engine.tokenizer.split.pattern import GPT2_WORDS

_END = "<|endoftext|>"
_DECODED = partial(binascii.a2b_base64, strict_mode=True)
_LINES = re.compile(rb"(?:[A-Za-z0-9+/]+={0,2} [0-9]{1,9}(?:\r?\n|\Z))*+(?:\s*\Z)?")


@dataclass(frozen=True)
class _Encoding:
    """What a rank file leaves out."""

    words: str
    special_tokens: Mapping[int, str] = field(default_factory=dict)
    bos: str | None = None
    eos: str = _END


def _llama3_specials() -> dict[int, str]:
    first = "begin_of_text end_of_text reserved_special_token_0 reserved_special_token_1".split()
    second = (
        "reserved_special_token_2 reserved_special_token_3 start_header_id end_header_id".split()
    )
    third = ["reserved_special_token_4", "eot_id"]
    rest = [f"reserved_special_token_{i}" for i in range(5, 251)]
    names = (*first, *second, *third, *rest)
    return {128000 + i: f"<|{name}|>" for i, name in enumerate(names)}


def _harmony_specials() -> dict[int, str]:
    named = {
        199998: "startoftext",
        199999: "endoftext",
        200002: "return",
        200003: "constrain",
        200005: "channel",
        200006: "start",
        200007: "end",
        200008: "message",
        200012: "call",
        200018: "endofprompt",
    }
    ids = (199998, 199999, *range(200000, 201088))
    return {i: f"<|{named.get(i, f'reserved_{i}')}|>" for i in ids}


_GPT2 = _Encoding(GPT2_WORDS, {50256: _END})
_BY_NAME = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": _GPT2,
    "p50k_edit": _Encoding(
        GPT2_WORDS,
        {50256: _END, 50281: "<|fim_prefix|>", 50282: "<|fim_middle|>", 50283: "<|fim_suffix|>"},
    ),
    "cl100k_base": _Encoding(
        CL100K_WORDS,
        {
            100257: _END,
            100258: "<|fim_prefix|>",
            100259: "<|fim_middle|>",
            100260: "<|fim_suffix|>",
            100276: "<|endofprompt|>",
        },
    ),
    "o200k_base": _Encoding(O200K_WORDS, {199999: _END, 200018: "<|endofprompt|>"}),
    "o200k_harmony": _Encoding(O200K_WORDS, _harmony_specials()),
}
# A tokenizer.model in this format is Meta's: Llama 3's with 128,000 ranks, Llama 4's with 200,000.
_META_BOS, _META_EOS = "<|begin_of_text|>", "<|end_of_text|>"
_LLAMA3_RANKS, _LLAMA4_RANKS = 128000, 200000
_LLAMA3 = _Encoding(CL100K_WORDS, _llama3_specials(), _META_BOS, _META_EOS)
_LLAMA4 = _Encoding(O200K_WORDS, {}, _META_BOS, _META_EOS)


def is_tiktoken(data: bytes) -> bool:
    """Whether the content of a file begins as a rank file does."""
    line = data[: data.find(b"\n") + 1 or 256].split()
    try:
        return len(line) == 2 and line[1].isdigit() and bool(binascii.a2b_base64(line[0]))
    except binascii.Error:
        return False


def definition_from_tiktoken(
    data: bytes, name: str, source: str, wishes: Wishes = NONE
) -> Definition:
    """Return the tokenizer of a rank file; `name` is the file's without its ending.

    Where `wishes` has added tokens, they are all there are.
    """
    ranks = _ranks(data, source)
    encoding = _BY_NAME.get(name) or _metas(len(ranks), wishes)
    if encoding is None:
        raise ModelFileError(
            f"{source}: a tiktoken file does not say how words are cut, and {name!r:.60} with "
            f"{len(ranks)} ranks is not known here; {', '.join(_BY_NAME)} are by their file's "
            "name, and Llama 3's tokenizer.model: give the model's tokenizer.json instead"
        )
    specials = list(wishes.added_tokens.values()) or [
        added_token(i, token, special=True) for i, token in encoding.special_tokens.items()
    ]
    ids = {entry["content"]: entry["id"] for entry in specials}
    ends = [
        (ids[token], token) if token is not None and token in ids else None
        for token in (encoding.bos, encoding.eos)
    ]
    return ranked(
        ranks,
        encoding.words,
        source,
        added_tokens=specials,
        post_processor=wishes.around(*ends),
    )


def _metas(n_ranks: int, wishes: Wishes) -> _Encoding | None:
    """Return what a file of Meta's leaves out, None if it is not Meta's."""
    first_id = next((i for i, e in wishes.added_tokens.items() if e["content"] == _META_BOS), 0)
    if max(n_ranks, first_id) >= _LLAMA4_RANKS and first_id:
        return _LLAMA4
    return _LLAMA3 if first_id or n_ranks == _LLAMA3_RANKS else None


def _ranks(data: bytes, source: str) -> dict[bytes, int]:
    lines = _LINES.fullmatch(data)
    if lines is None:
        number = data[: _LINES.match(data).end()].count(b"\n") + 1  # type: ignore[union-attr]
        raise damaged(source, f"line {number}", "it must be a token in base64 and its rank")
    words = data.split()
    try:
        tokens = list(map(_DECODED, words[::2]))
    except ValueError as error:
        raise damaged(source, "base64", error) from error
    ranks = dict(zip(tokens, map(int, words[1::2]), strict=True))
    if len(ranks) < len(tokens) or len(set(ranks.values())) < len(ranks):
        raise damaged(source, "list of ranks", "a token or a rank appears twice")
    return ranks


def decoded(text: str, source: str) -> bytes:
    """Return the bytes of a token in base64."""
    try:
        return _DECODED(text)
    except ValueError as error:
        raise damaged(source, f"base64 {text!r:.60}", error) from error


def ranked(
    ranks: Mapping[bytes, int],
    words: str,
    source: str,
    *,
    first_id: int = 0,
    added_tokens: Iterable[Definition],
    post_processor: Definition | None,
) -> Definition:
    """Return the tokenizer that merges by rank; `words` is the pattern of a word.

    A token's id is its rank after `first_id`.
    """
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise damaged(source, "list of tokens", f"the byte {missing[0]} has none")
    if b"" in ranks:
        raise damaged(source, "list of tokens", "a token is empty")
    vocab = {spelled(token): rank + first_id for token, rank in ranks.items()}
    return byte_level(
        byte_pairs(vocab, TokenRanks(vocab, vocab), ignore_merges=True),
        [split_at(words), BYTES],
        added_tokens=added_tokens,
        post_processor=post_processor,
    )
