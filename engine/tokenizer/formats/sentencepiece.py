"""Makes a tokenizer of a SentencePiece model, BPE or Unigram.

A text becomes the tokens that SentencePiece's own encoder gives. Beyond it, and as transformers
does, control tokens written in a text are found, a BOS comes first if the model has one, and
decoding prints control tokens unless they are skipped. What stands between control tokens is
encoded as if it stood alone, dummy prefix included; transformers differs there from one version to
the next, and before a text that begins with spaces.
Source: SentencePiece 0.2, its encoder as a definition.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

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
from engine.tokenizer.formats.ranked import stages_of
from engine.tokenizer.formats.sentencepiece_file import (
    BYTE,
    CONTROL,
    KINDS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Pieces,
    SentencePieceModel,
    Spaces,
)
from engine.tokenizer.formats.wishes import NONE, Wishes
from engine.tokenizer.models.ranks import TokenRanks
from engine.tokenizer.models.unigram import UnigramModel
from engine.tokenizer.models.user_defined import UserDefinedModel
from engine.tokenizer.normalize.charsmap import Charsmap
from engine.tokenizer.normalize.precompiled import LongestReplaced
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.user_defined import UserDefinedCut
from engine.tokenizer.stages import Stages


def _check_pieces(pieces: Pieces, source: str) -> None:
    """Raise ModelFileError unless pieces are such as SentencePiece makes."""
    if "" in pieces.texts:
        raise damaged(source, "list of pieces", f"the piece {pieces.texts.index('')} is empty")
    if len(set(pieces.texts)) < len(pieces.texts):
        raise damaged(source, "list of pieces", "a piece appears twice")
    if unknown := set(pieces.kinds) - KINDS:
        raise ModelFileError(f"{source}: pieces of the type {min(unknown)} are not supported")
    if list(pieces.kinds).count(UNKNOWN) != 1:
        raise damaged(source, "list of pieces", "one piece and no more must be the unknown one")


def definition_from_model(
    model: SentencePieceModel, source: str, wishes: Wishes = NONE, *, first: Sequence[str] = ()
) -> Definition:
    """Return the object of the tokenizer.json that comes nearest to a model.

    User-defined pieces are added tokens here, as transformers has them. The pieces `first` merge
    before all others.
    """
    _check_pieces(model.pieces, source)
    pieces = model.pieces
    vocab = {text: i for i, text in pieces.of(*KINDS - {UNUSED})}
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
