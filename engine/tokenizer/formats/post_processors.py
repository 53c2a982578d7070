"""Reads the post-processor of a tokenizer.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.formats.fields import Default, take
from engine.tokenizer.formats.models import LARGEST_ID
from engine.tokenizer.post import (
    Pieces,
    PostProcessor,
    PostStep,
    Specials,
    Template,
    Text,
    TrimOffsets,
)

STAGE = "post_processor"

_TEXTS = {"A": 0, "B": 1}


def read_post_processor(spec: Any, source: str) -> PostProcessor:
    """Return the steps that a post-processor describes; `source` is for errors."""
    steps = _steps(spec, source)
    if sum(isinstance(step, Template) for step in steps) > 1:
        # The reference fails on a pair then, and no real file has two.
        raise ModelFileError(
            f"{source}: more than one post_processor that adds special tokens is not supported"
        )
    return PostProcessor(steps)


def _steps(spec: Any, source: str) -> list[PostStep]:
    match spec:
        case None:
            return []
        case {"type": "ByteLevel"}:
            prefix_space, trims, _ = take(
                spec,
                source,
                STAGE,
                add_prefix_space=bool,
                trim_offsets=bool,
                use_regex=Default(bool, True),  # the pre-tokenizer's affair
            )
            return [TrimOffsets(prefix_space)] if trims else []
        case {"type": "TemplateProcessing"}:
            single, pair, special_tokens = take(
                spec, source, STAGE, single=list, pair=list, special_tokens=dict
            )
            reader = _TemplateReader(special_tokens, source)
            return [Template(reader.pieces(single, "A"), reader.pieces(pair, "AB"))]
        case {"type": "BertProcessing"}:
            cls, sep = take(spec, source, STAGE, cls=list, sep=list)
            begin, end = _one(cls, source), _one(sep, source)
            first = (begin, Text(0), end)
            return [Template(first, (*first, Text(1, 1), replace(end, type_id=1)))]
        case {"type": "RobertaProcessing"}:
            cls, sep, prefix_space, trims = take(
                spec, source, STAGE, cls=list, sep=list, add_prefix_space=bool, trim_offsets=bool
            )
            begin, end = _one(cls, source), _one(sep, source)
            first = (begin, Text(0), end)
            trimmed = [TrimOffsets(prefix_space)] if trims else []
            return [*trimmed, Template(first, (*first, end, Text(1), end))]
        case {"type": "Sequence"}:
            (parts,) = take(spec, source, STAGE, processors=list)
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, STAGE, spec)


def _one(spec: list[Any], source: str) -> Specials:
    match spec:
        case [str(token), int(token_id)] if type(token_id) is int and token_id >= 0:
            return Specials((token_id,), (token,))
    raise damaged(source, STAGE, f"{spec!r:.60} is no token with its id")


class _TemplateReader:
    """Reads the templates of one TemplateProcessing."""

    def __init__(self, special_tokens: dict[str, Any], source: str) -> None:
        self._special_tokens = special_tokens
        self._source = source

    def pieces(self, specs: list[Any], texts: str) -> Pieces:
        """Return a template that must hold the named texts, each at least once."""
        try:
            pieces = tuple(self._piece(spec) for spec in specs)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self._source, f"{STAGE} TemplateProcessing", error) from error
        held = {piece.which for piece in pieces if isinstance(piece, Text)}
        if held != {_TEXTS[text] for text in texts}:
            raise damaged(self._source, f"{STAGE} TemplateProcessing", f"it must hold {texts}")
        return pieces

    def _piece(self, spec: Any) -> Text | Specials:
        match spec:
            case {"Sequence": {"id": str(text), "type_id": int(type_id)}}:
                return Text(_TEXTS[text], type_id)
            case {"SpecialToken": {"id": str(name), "type_id": int(type_id)}}:
                token = self._special_tokens[name]
                specials = Specials(tuple(token["ids"]), tuple(token["tokens"]), type_id)
                if (
                    len(specials.ids) != len(specials.tokens)
                    or not all(type(i) is int and 0 <= i <= LARGEST_ID for i in specials.ids)
                    or not all(isinstance(text, str) for text in specials.tokens)
                ):
                    raise ValueError(f"the special token {name!r:.60}")
                return specials
        raise ValueError(f"the piece {spec!r:.60}")
