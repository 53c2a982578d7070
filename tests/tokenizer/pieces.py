"""SentencePiece models written by hand, and in our hands."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from engine.tokenizer import Tokenizer
from engine.tokenizer.formats.parts import Definition
from engine.tokenizer.formats.sentencepiece import definition_from_model, stages_from_model
from engine.tokenizer.formats.sentencepiece_file import CONTROL, NORMAL, UNKNOWN, read_sentencepiece
from engine.tokenizer.stages import Surroundings

FIXTURES = Path(__file__).parent / "fixtures"
UNIGRAM, BPE = 1, 2

Piece = tuple[str, float, int]

SPECIAL: list[Piece] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
LETTERS: list[Piece] = [(c, -10.0 - i, NORMAL) for i, c in enumerate("▁abc")]


def number(value: int) -> bytes:
    """A number as the wire format has it."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def field(key: int, value: int | bytes | float) -> bytes:
    if isinstance(value, bytes):
        return number(key << 3 | 2) + number(len(value)) + value
    if isinstance(value, float):
        return number(key << 3 | 5) + struct.pack("<f", value)
    return number(key << 3) + number(value)


def written(
    pieces: Iterable[Piece], trainer: dict[int, int], normalizer: dict[int, int | bytes]
) -> bytes:
    """A .model file with these pieces and these fields of its two specifications."""
    listed = (
        field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
        for text, score, kind in pieces
    )
    specs = (b"".join(field(*item) for item in spec.items()) for spec in (trainer, normalizer))
    return b"".join([*listed, *(field(i, spec) for i, spec in zip((2, 3), specs, strict=True))])


def in_our_hands(model: bytes) -> tuple[Tokenizer, Definition]:
    """The tokenizer of a .model file, and the tokenizer.json that comes nearest."""
    read = read_sentencepiece(model, "test")
    definition = definition_from_model(read, "test")
    stages = stages_from_model(read, definition, "test")
    return Tokenizer(stages, Surroundings(special_tokens=read.special_tokens), "test"), definition
