"""Reads a SentencePiece .model file, BPE or Unigram.

A text becomes the tokens that SentencePiece's own encoder gives. Beyond it, and as transformers
does, control tokens written in a text are found, a BOS comes first if the model has one, and
decoding prints control tokens unless they are skipped. What stands between control tokens is
encoded as if it stood alone, dummy prefix included; transformers differs there from one version to
the next, and before a text that begins with spaces.
Source: SentencePiece 0.2, its sentencepiece_model.proto and its encoder as a definition.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import gt

from engine.errors import ModelFileError
from engine.tokenizer.aligned import Chain
from engine.tokenizer.formats.faults import damaged
from engine.tokenizer.formats.parts import (
    SPACE,
    Definition,
    added_token,
    byte_pairs,
    replace,
    sequence,
)
from engine.tokenizer.formats.protobuf import fields, signed
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.wishes import NONE, Wishes
from engine.tokenizer.models.ranks import TokenRanks
from engine.tokenizer.models.unigram import UnigramModel
from engine.tokenizer.models.user_defined import UserDefinedModel
from engine.tokenizer.normalize.charsmap import Charsmap
from engine.tokenizer.normalize.precompiled import LongestReplaced
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.user_defined import UserDefinedCut
from engine.tokenizer.stages import Stages

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_KINDS = frozenset(range(1, 7))

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

    def ranks(self, before: Sequence[str] = ()) -> dict[str, int]:
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


def check_pieces(pieces: Pieces, source: str) -> None:
    """Raise ModelFileError unless pieces are such as SentencePiece makes."""
    if "" in pieces.texts:
        raise damaged(source, "list of pieces", f"the piece {pieces.texts.index('')} is empty")
    if len(set(pieces.texts)) < len(pieces.texts):
        raise damaged(source, "list of pieces", "a piece appears twice")
    if unknown := set(pieces.kinds) - _KINDS:
        raise ModelFileError(f"{source}: pieces of the type {min(unknown)} are not supported")
    if list(pieces.kinds).count(UNKNOWN) != 1:
        raise damaged(source, "list of pieces", "one piece and no more must be the unknown one")


def _special_tokens(trainer: Mapping[int, int | bytes], pieces: Pieces) -> dict[str, str]:
    special = {}
    for name, (number, default) in _IDS.items():
        token_id = signed(int(trainer.get(number, default)))
        if 0 <= token_id < len(pieces.texts) and pieces.kinds[token_id] in (CONTROL, UNKNOWN):
            special[name] = pieces.texts[token_id]
    return special


def definition_from_model(
    model: SentencePieceModel, source: str, wishes: Wishes = NONE, *, first: Sequence[str] = ()
) -> Definition:
    """Return the object of the tokenizer.json that comes nearest to a model.

    User-defined pieces are added tokens here, as transformers has them. The pieces `first` merge
    before all others.
    """
    check_pieces(model.pieces, source)
    pieces = model.pieces
    vocab = {text: i for i, text in pieces.of(*_KINDS - {UNUSED})}
    own = {
        i: added_token(i, text, special=pieces.kinds[i] != USER_DEFINED)
        for i, text in pieces.of(UNKNOWN, CONTROL, USER_DEFINED)
    }
    ends = [
        None if token is None else (vocab[token], token)
        for token in map(model.special_tokens.get, ("bos_token", "eos_token"))
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [entry for _, entry in sorted({**own, **wishes.added_tokens}.items())],
        "normalizer": sequence("normalizers", _normalizers(model)),
        "pre_tokenizer": None,
        "post_processor": wishes.around(*ends),
        "decoder": decoder(
            model.byte_fallback, model.spaces.add_dummy_prefix or model.spaces.remove_extra
        ),
        "model": _unigram(model) if model.is_unigram else _bpe(model, vocab, first, source),
    }


def _normalizers(model: SentencePieceModel) -> list[Definition]:
    charsmap = {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(model.charsmap).decode(),
    }
    return [*([charsmap] if model.charsmap else []), *space_normalizers(model.spaces)]


def space_normalizers(spaces: Spaces) -> list[Definition]:
    """Return the steps of a normalizer for spaces."""
    space = SPACE if spaces.escape else " "
    steps = []
    if spaces.remove_extra:
        steps += [replace({"Regex": r"\A +| +\z"}, ""), replace({"Regex": " {2,}"}, " ")]
    if spaces.add_dummy_prefix and not spaces.at_end:
        steps.append({"type": "Prepend", "prepend": space})
    if spaces.escape:
        steps.append(replace({"String": " "}, SPACE))
    if spaces.remove_extra:
        steps.append(replace({"Regex": rf"{space}+\z"}, ""))
    if spaces.add_dummy_prefix and spaces.at_end:
        steps.append(replace({"Regex": r"(?<!\A)\z"}, space))
    return steps


def decoder(byte_fallback: bool, strip: bool) -> Definition:
    """Return the decoder of pieces; `strip` takes the space away that stands before all text."""
    steps: list[Definition] = [replace({"String": SPACE}, " ")]
    if byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if strip:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _bpe(
    model: SentencePieceModel, vocab: Mapping[str, int], first: Sequence[str], source: str
) -> Definition:
    pieces = model.pieces
    ranks = pieces.ranks(first)
    _refuse_unspelled(ranks, source)
    ((_, unknown),) = pieces.of(UNKNOWN)
    return byte_pairs(
        vocab,
        TokenRanks(vocab, ranks),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _refuse_unspelled(normal: Iterable[str], source: str) -> None:
    """Refuse a piece with a character that is no piece, if merging can make it.

    SentencePiece merges such a character, though it is unknown alone.
    """
    known = set(normal)
    unspelled = set("".join(normal)) - known
    if not unspelled:
        return
    made = unspelled | known
    for text in sorted(normal, key=len):
        if len(text) == 1 or unspelled.isdisjoint(text):
            continue
        if any(text[:i] in made and text[i:] in made for i in range(1, len(text))):
            raise ModelFileError(
                f"{source}: the piece {text!r:.60} has a character that is no piece, which is not "
                "supported"
            )
        made.discard(text)


def _unigram(model: SentencePieceModel) -> Definition:
    pieces = model.pieces
    scores = [
        # What the encoder takes for their score, so that they go before all others (measured).
        0.1 * (len(text.encode()) - 1) if kind == USER_DEFINED else score
        for text, score, kind in zip(pieces.texts, pieces.scores, pieces.kinds, strict=True)
    ]
    ((unknown, _),) = pieces.of(UNKNOWN)
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": [[text, score] for text, score in zip(pieces.texts, scores, strict=True)],
        "byte_fallback": model.byte_fallback,
    }


def stages_from_model(model: SentencePieceModel, definition: Definition, source: str) -> Stages:
    """Return the stages of a model; `definition` is put right where it is not the encoder's.

    A tokenizer.json cannot say that the longest entry of the charsmap counts, that a piece is taken
    whole wherever it stands in the normalised text, or that a piece stands for no text.
    """
    pieces = model.pieces
    special = {entry["content"] for entry in definition["added_tokens"] if entry["special"]}
    symbols = {text: i for i, text in pieces.of(USER_DEFINED) if text not in special}
    stages = stages_of(
        {
            **definition,
            "normalizer": sequence("normalizers", space_normalizers(model.spaces)),
            "added_tokens": [e for e in definition["added_tokens"] if e["content"] not in symbols],
        },
        source,
    )
    if model.charsmap:
        longest = LongestReplaced(_charsmap(model, source), symbols)
        stages = dataclasses.replace(stages, normalizer=Chain((longest, stages.normalizer)))
    if model.is_unigram:
        spec = definition["model"]
        apart = frozenset(text for _, text in pieces.of(UNKNOWN, CONTROL, UNUSED, BYTE))
        scores = [score for _, score in spec["vocab"]]
        vocab = stages.model.vocab
        unigram = UnigramModel(
            vocab, scores, spec["unk_id"], spec["byte_fallback"], apart, single_precision=True
        )
        return dataclasses.replace(stages, model=unigram)
    if not symbols:
        return stages
    return dataclasses.replace(
        stages,
        splitter=Splitter([UserDefinedCut(symbols)]),
        model=UserDefinedModel(stages.model, symbols),
    )


def _charsmap(model: SentencePieceModel, source: str) -> Charsmap:
    try:
        return Charsmap(model.charsmap)
    except ValueError as error:
        raise damaged(source, "precompiled_charsmap", error) from error
