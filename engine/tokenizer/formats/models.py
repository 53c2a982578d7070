"""Reads the model of a tokenizer.json: BPE, Unigram, WordPiece or WordLevel.

Every field is checked, and one that is not known is refused by name.
Source: the format as the tokenizers library 0.23 reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from math import isfinite
from typing import Any, TypeVar

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.models.bpe import BytePairModel
from engine.tokenizer.models.characters import Unknown
from engine.tokenizer.models.model import Model
from engine.tokenizer.models.unigram import UnigramModel
from engine.tokenizer.models.words import WordLevelModel, WordPieceModel

T = TypeVar("T")
D = TypeVar("D")

LARGEST_ID = (1 << 32) - 1


def read_model(spec: Any, source: str) -> Model:
    """Return the model that a file describes; `source` is for errors."""
    if isinstance(spec, dict):
        kind = spec.get("type", _kind_by_fields(spec))
        if isinstance(kind, str) and kind in _READERS:
            fields = _Fields(kind, spec, source)
            model = _READERS[kind](fields)
            fields.refuse_the_rest()
            return model
    raise unsupported(source, "model", spec)


def _kind_by_fields(spec: Mapping[str, Any]) -> str | None:
    """Return what a file from before models had a type means, as the library guesses it."""
    if "vocab" not in spec:
        return None
    if "merges" in spec:
        return "BPE"
    if "max_input_chars_per_word" in spec:
        return "WordPiece"
    return "WordLevel" if "unk_token" in spec else "Unigram"


class _Fields:
    """The fields of one model's object; each is asked for once."""

    def __init__(self, kind: str, spec: Mapping[str, Any], source: str) -> None:
        self._kind = kind
        self._left = {name: value for name, value in spec.items() if name != "type"}
        self.source = source

    def take(self, name: str, kind: type[T], default: D) -> T | D:
        """Return a field; one that is missing or null has its default."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        if type(value) is not kind:
            raise self.damage(name, f"{value!r:.60} stands where a {kind.__name__} must")
        return value

    def take_number(self, name: str, default: float) -> float:
        """Return a field that may be written with a point or without."""
        is_whole = type(self._left.get(name)) is int
        return self.take(name, int if is_whole else float, default)

    def need(self, name: str, kind: type[T]) -> T:
        """Return a field that must be there."""
        if self._left.get(name) is None:
            raise self.damage(name, "it is missing")
        return self.take(name, kind, kind())

    def vocab(self) -> dict[str, int]:
        """Return a vocabulary that maps each token to an id of its own."""
        vocab = self.need("vocab", dict)
        ids = vocab.values()
        if not set(map(type, ids)) <= {int}:
            raise self.damage("vocab", "an id is not an integer")
        if vocab and not 0 <= min(ids) <= max(ids) <= LARGEST_ID:
            raise self.damage("vocab", f"{min(ids)} or {max(ids)} cannot be an id")
        if len(set(ids)) < len(vocab):
            raise self.damage("vocab", "two tokens have the same id")
        self.check_text("vocab", vocab)
        return vocab

    def check_text(self, name: str, texts: Any) -> None:
        """Raise ModelFileError unless these are strings of whole characters."""
        try:
            "".join(texts).encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise self.damage(name, error) from error

    def damage(self, name: str, error: object) -> ModelFileError:
        return damaged(self.source, f"{name} of the {self._kind} model", error)

    def refuse_the_rest(self) -> None:
        """Raise ModelFileError if a field has not been asked for."""
        for name in self._left:
            raise ModelFileError(
                f"{self.source}: the {self._kind} model's field {name!r} is not supported"
            )


def _byte_pair_model(fields: _Fields) -> BytePairModel:
    if fields.take_number("dropout", 0) != 0:
        raise ModelFileError(
            f"{fields.source}: the BPE model's dropout is not supported: its ids would be random"
        )
    vocab = fields.vocab()
    unknown = Unknown(
        token=fields.take("unk_token", str, None),
        fuse=fields.take("fuse_unk", bool, False),
        byte_fallback=fields.take("byte_fallback", bool, False),
    )
    prefix = fields.take("continuing_subword_prefix", str, "")
    suffix = fields.take("end_of_word_suffix", str, "")
    if unknown.byte_fallback and (prefix or suffix):
        raise ModelFileError(
            f"{fields.source}: the BPE model's byte_fallback is not supported together with a "
            "prefix or suffix, whose bytes stand for no place in the text"
        )
    ignore_merges = fields.take("ignore_merges", bool, False)
    try:
        merges = _pairs(fields.need("merges", list))
        return BytePairModel(vocab, merges, ignore_merges, unknown, prefix, suffix)
    except (KeyError, TypeError, ValueError) as error:
        raise fields.damage("merges", error) from error


def _pairs(merges: list[Any]) -> Iterable[Sequence[str]]:
    """Return merges as pairs; files spell them so or as "left right".

    Raise TypeError or ValueError if they are neither.
    """
    if set(map(type, merges)) == {str}:
        if "#version" in "".join(merges):
            # A file made from GPT-2's merges.txt may still have its first line.
            merges = [merge for merge in merges if not merge.startswith("#version")]
        if set(map(str.count, merges, repeat(" "))) <= {1}:
            tokens = " ".join(merges).split(" ")
            return zip(tokens[::2], tokens[1::2], strict=False)
    elif set(map(type, merges)) <= {list} and set(map(len, merges)) <= {2}:
        return merges
    raise ValueError("an entry is not a pair of tokens")


def _unigram_model(fields: _Fields) -> UnigramModel:
    entries = fields.need("vocab", list)
    unk_id = fields.take("unk_id", int, None)
    if not set(map(type, entries)) <= {list} or not set(map(len, entries)) <= {2}:
        raise fields.damage("vocab", "an entry is not a token with its score")
    tokens, scores = [token for token, _ in entries], [score for _, score in entries]
    fields.check_text("vocab", tokens)
    if not set(map(type, scores)) <= {int, float}:
        raise fields.damage("vocab", "a score is not a number")
    try:
        scores = list(map(float, scores))
    except OverflowError as error:
        raise fields.damage("vocab", error) from error
    if not all(map(isfinite, scores)):
        raise fields.damage("vocab", "a score is not finite")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise fields.damage("vocab", "a token is listed twice")
    if unk_id is not None and not 0 <= unk_id < len(tokens):
        raise fields.damage("unk_id", f"{unk_id} is not the place of a token")
    byte_fallback = fields.take("byte_fallback", bool, False)
    return UnigramModel(vocab, scores, unk_id, byte_fallback)


def _word_piece_model(fields: _Fields) -> WordPieceModel:
    longest = fields.need("max_input_chars_per_word", int)
    if longest < 0:
        raise fields.damage("max_input_chars_per_word", "it is negative")
    return WordPieceModel(
        fields.vocab(),
        fields.need("unk_token", str),
        fields.need("continuing_subword_prefix", str),
        longest,
    )


def _word_level_model(fields: _Fields) -> WordLevelModel:
    return WordLevelModel(fields.vocab(), fields.need("unk_token", str))


_READERS: Mapping[str, Callable[[_Fields], Model]] = {
    "BPE": _byte_pair_model,
    "Unigram": _unigram_model,
    "WordPiece": _word_piece_model,
    "WordLevel": _word_level_model,
}
