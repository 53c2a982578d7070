"""Decoders once more in the plainest way, chains of them to draw, and tokens that provoke them.

`text_of` decodes a whole list. With `streamed` it is the specification of a stream: characters of a
run of byte tokens that stand before the run's first bad byte stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.text_vocabularies import byte_alphabet
from engine.tokenizer.normalize.replace import ReplacePattern
from tests.tokenizer.definitions import BYTE_LEVEL

Json = dict[str, Any]

_TIDIED = {
    " .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m",
    " do not": " don't", " 's": "'s", " 've": "'ve", " 're": "'re",
}  # fmt: skip
_BYTE_OF = {character: byte for byte, character in enumerate(byte_alphabet())}


def text_of(decoder: Json | None, tokens: Sequence[str], streamed: bool = False) -> str:
    if decoder is None:
        return " ".join(tokens)
    return "".join(_made(decoder, list(tokens), streamed))


def _made(decoder: Json, tokens: list[str], streamed: bool) -> list[str]:
    match decoder:
        case {"type": "Sequence", "decoders": steps}:
            for step in steps:
                tokens = _made(step, tokens, streamed)
            return tokens
        case {"type": "ByteLevel"}:
            return [b"".join(map(_spelled, tokens)).decode(errors="replace")]
        case {"type": "ByteFallback"}:
            return _fallen_back(tokens, streamed)
        case {"type": "Fuse"}:
            return ["".join(tokens)]
        case {"type": "Strip", "content": c, "start": start, "stop": stop}:
            return [_stripped(token, c, start, stop) for token in tokens]
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return [token and token.replace(old, new) for token in tokens]
        case {"type": "Replace", "pattern": {"Regex": pattern}, "content": new}:
            return list(map(ReplacePattern(pattern, new), tokens))
        case {"type": "Metaspace", "replacement": c, "prepend_scheme": scheme}:
            of_first = " " if scheme == "never" else ""
            return [t.replace(c, " " if i else of_first) for i, t in enumerate(tokens)]
        case {"type": "WordPiece", "prefix": mark, "cleanup": cleanup}:
            words = [
                t if not i else t[len(mark) :] if t.startswith(mark) else f" {t}"
                for i, t in enumerate(tokens)
            ]
            for old, new in _TIDIED.items() if cleanup else ():
                words = [word.replace(old, new) for word in words]
            return words
        case {"type": "BPEDecoder", "suffix": mark}:
            last = len(tokens) - 1
            return [t.replace(mark, " " if i < last else "") for i, t in enumerate(tokens)]
    raise AssertionError(decoder)


def _spelled(token: str) -> bytes:
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()


def _stripped(token: str, c: str, start: int, stop: int) -> str:
    while start and token.startswith(c):
        token, start = token[1:], start - 1
    while stop and token.endswith(c):
        token, stop = token[:-1], stop - 1
    return token


def _fallen_back(tokens: list[str], streamed: bool) -> list[str]:
    out: list[str] = []
    run = b""
    for token in [*tokens, None]:
        if token is not None and re.fullmatch("<0x[0-9a-fA-F+][0-9a-fA-F]>", token):
            run += bytes([int(token[3:5], 16)])
            continue
        good = _good(run) if streamed else len(run) if _good(run) == len(run) else 0
        out += [run[:good].decode()] if good else []
        out += ["\ufffd"] * (len(run) - good)
        run = b""
        if token is not None:
            out.append(token)
    return out


def _good(run: bytes) -> int:
    """How many bytes at the beginning are whole characters."""
    try:
        run.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(run)


def _of(kind: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind), **options})


def _one(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_OLD = ["▁", "ab", "a", "aab", "", "<0", "\ufffd", " ", "aa"]
_PATTERNS = ["a|b", "b*", "^a", "a$", "(?<=a)b", "", "[ ▁]+", "x?"]
_PATTERN = _one([{"String": old} for old in _OLD] + [{"Regex": pattern} for pattern in _PATTERNS])
SINGLE = st.one_of(
    st.just(BYTE_LEVEL),
    _of("ByteFallback"),
    _of("Fuse"),
    _of("Strip", content=_one(" a▁"), start=st.integers(0, 2), stop=_one([0, 0, 1, 2])),
    _of("Replace", pattern=_PATTERN, content=_one([" ", "", "x", "ab", "▁"])),
    _of("Metaspace", replacement=_one("▁a"), prepend_scheme=_one(["always", "first", "never"])),
    _of("WordPiece", prefix=_one(["##", "", "#", "ab"]), cleanup=st.booleans()),
    _of("BPEDecoder", suffix=_one(["</w>", "", "b", "ab"])),
)
_SEQUENCE = _of("Sequence", decoders=st.lists(st.one_of(SINGLE, SINGLE), max_size=5))
DECODERS = st.one_of(
    st.none(),
    SINGLE,
    _SEQUENCE,
    _SEQUENCE,
    _of("Sequence", decoders=st.lists(st.one_of(SINGLE, _SEQUENCE), max_size=3)),
)
TOKENS = st.one_of(
    _one([0xE2, 0x82, 0xAC, 0x41, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0x20, 0xED, 0xA0, 0xFF]).map(
        "<0x{:02X}>".format
    ),
    _one(
        [
            " do not", "##b", "ab</w>", "</w>", "n't", "'s", "#", "##", "âĤ", "¬", "Ġa", "▁", "▁a",
            " ", "  ", "<0xZZ>", "<0x4", "1>", "<0x+F>", "<0xé>", "", "Ł", "é", "aab", "ð", "ŁĺĢ",
        ]
    ),
    st.text("ab #▁Ġâ é<0x>Łď'.d\ufffd·", max_size=6),
)  # fmt: skip
