"""Reads SentencePiece's .model file: its pieces, and what it says of normalising.

Source: SentencePiece 0.2, its sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import gt

from engine.errors import ModelFileError
from engine.tokenizer.formats.protobuf import fields, signed

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KINDS = frozenset(range(1, 7))

_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {_UNIGRAM: "Unigram", _BPE: "BPE", 3: "word", 4: "char"}

# Numbers of the fields of a ModelProto, and of the messages in it.
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_IDS = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPE, _RULES = 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Pieces:
    """The vocabulary by id: text, score and kind of each piece."""

    texts: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]

    def of(self, *kinds: int) -> list[tuple[int, str]]:
        """Return the pieces of some kinds with their ids."""
        return list(compress(enumerate(self.texts), map(set(kinds).__contains__, self.kinds)))

    def ranks(self, before: Sequence[str]) -> dict[str, int]:
        """Return the ranks of the normal pieces: the better the score, the lower.

        The pieces `before` come first, in their order.
        """
        texts = [*before, *(text for _, text in self.of(NORMAL))]
        scores = list(compress(self.scores, map(NORMAL.__eq__, self.kinds)))
        if all(map(gt, scores, scores[1:])):  # as the trainer writes them
            return dict(zip(texts, count()))
        best_first = sorted(set(scores), reverse=True)
        rank_of = {score: rank for rank, score in enumerate(best_first, start=len(before))}
        return dict(
            zip(texts, [*range(len(before)), *map(rank_of.__getitem__, scores)], strict=True)
        )


@dataclass(frozen=True)
class Spaces:
    """What a normaliser does to spaces."""

    add_dummy_prefix: bool = True
    remove_extra: bool = True
    escape: bool = True
    at_end: bool = False
    """Whether the dummy prefix is a suffix."""


@dataclass(frozen=True)
class SentencePieceModel:
    """A .model file."""

    pieces: Pieces
    is_unigram: bool
    byte_fallback: bool
    spaces: Spaces
    charsmap: bytes
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The text of bos_token, eos_token, pad_token and unk_token, as far as there are any."""


def is_sentencepiece(data: bytes) -> bool:
    """Whether the content of a file begins as a .model file does: with a piece."""
    return len(data) > 4 and data[0] == 0x0A and data[2] == 0x0A


def read_sentencepiece(data: bytes, source: str) -> SentencePieceModel:
    """Return what a .model file holds; `source` is for errors."""
    try:
        return _model(data, source)
    except (ValueError, TypeError, struct.error) as error:
        raise ModelFileError(
            f"{source} is no sound SentencePiece model ({error}): fetch the file again"
        ) from error


def _model(data: bytes, source: str) -> SentencePieceModel:
    listed: list[bytes] = []
    messages: dict[int, bytes] = {}
    for number, value in fields(data):
        if not isinstance(value, bytes):
            raise ValueError(f"the field {number} is a number")
        if number == _PIECES:
            listed.append(value)
        else:
            messages[number] = messages.get(number, b"") + value
    pieces = _pieces(listed)
    trainer = dict(fields(messages.get(_TRAINER, b"")))
    normalizer = dict(fields(messages.get(_NORMALIZER, b"")))
    if any(value for _, value in fields(messages.get(_DENORMALIZER, b""))):
        denormalizer = dict(fields(messages[_DENORMALIZER]))
        if denormalizer.get(_CHARSMAP) or denormalizer.get(_RULES):
            raise ModelFileError(f"{source}: a SentencePiece denormalizer is not supported")
    model_type = trainer.get(_MODEL_TYPE, _UNIGRAM)
    if model_type not in (_UNIGRAM, _BPE):
        name = _MODEL_TYPES.get(int(model_type), str(model_type))
        raise ModelFileError(
            f"{source}: the SentencePiece model type {name!r} is not supported; Unigram and BPE are"
        )
    if model_type == _BPE and UNUSED in pieces.kinds:
        raise ModelFileError(f"{source}: unused pieces are not supported in BPE")
    charsmap = normalizer.get(_CHARSMAP, b"")
    if not isinstance(charsmap, bytes):
        raise ValueError("the precompiled_charsmap is a number")
    return SentencePieceModel(
        pieces=pieces,
        is_unigram=model_type == _UNIGRAM,
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        spaces=Spaces(
            add_dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
            remove_extra=bool(normalizer.get(_EXTRA_SPACES, 1)),
            escape=bool(normalizer.get(_ESCAPE, 1)),
            at_end=bool(trainer.get(_SUFFIX, 0)),
        ),
        charsmap=charsmap,
        special_tokens=_special_tokens(trainer, pieces),
    )


def _pieces(messages: Sequence[bytes]) -> Pieces:
    texts: list[bytes] = []
    scores: list[bytes] = []
    kinds: list[int] = []
    for message in messages:
        # Most are a short text and a score.
        if (
            len(message) > 6
            and message[0] == 0x0A
            and message[1] == len(message) - 7
            and message[-5] == 0x15
        ):
            texts.append(message[2:-5])
            scores.append(message[-4:])
            kinds.append(NORMAL)
            continue
        values = dict(fields(message))
        text, score, kind = values.get(1, b""), values.get(2, bytes(4)), values.get(3, NORMAL)
        if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
            raise TypeError(f"the piece {text!r:.60} is written wrongly")
        texts.append(text)
        scores.append(score)
        kinds.append(kind)
    numbers = struct.unpack(f"<{len(scores)}f", b"".join(scores))
    return Pieces(list(map(bytes.decode, texts)), numbers, kinds)


def _special_tokens(trainer: Mapping[int, int | bytes], pieces: Pieces) -> dict[str, str]:
    special = {}
    for name, (number, default) in _IDS.items():
        token_id = signed(int(trainer.get(number, default)))
        if 0 <= token_id < len(pieces.texts) and pieces.kinds[token_id] in (CONTROL, UNKNOWN):
            special[name] = pieces.texts[token_id]
    return special
