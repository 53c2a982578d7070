"""Reads the post-processor of a tokenizer.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.post import (
    Pieces,
    PostProcessor,
    PostStep,
    Specials,
    Template,
    Text,
    TrimOffsets,
)

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
            return _trim(spec)
        case {
            "type": "TemplateProcessing",
            "single": list(single),
            "pair": list(pair),
            "special_tokens": dict(special_tokens),
        }:
            reader = _TemplateReader(special_tokens, source)
            return [Template(reader.pieces(single, "A"), reader.pieces(pair, "AB"))]
        case {"type": "BertProcessing", "sep": [sep, sep_id], "cls": [cls, cls_id]}:
            begin, end = _one(cls, cls_id, source), _one(sep, sep_id, source)
            first = (begin, Text(0), end)
            return [Template(first, (*first, Text(1, 1), replace(end, type_id=1)))]
        case {"type": "RobertaProcessing", "sep": [sep, sep_id], "cls": [cls, cls_id]}:
            begin, end = _one(cls, cls_id, source), _one(sep, sep_id, source)
            first = (begin, Text(0), end)
            return [*_trim(spec), Template(first, (*first, end, Text(1), end))]
        case {"type": "Sequence", "processors": list(parts)}:
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, "post_processor", spec)


def _trim(spec: dict[str, Any]) -> list[PostStep]:
    if not spec.get("trim_offsets", True):
        return []
    return [TrimOffsets(prefix_space=bool(spec.get("add_prefix_space", True)))]


def _one(token: Any, token_id: Any, source: str) -> Specials:
    if not isinstance(token, str) or type(token_id) is not int or token_id < 0:
        raise damaged(source, "post_processor", f"{token!r:.60} with the id {token_id!r:.60}")
    return Specials((token_id,), (token,))


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
            raise damaged(self._source, "post_processor TemplateProcessing", error) from error
        held = {piece.which for piece in pieces if isinstance(piece, Text)}
        if held != {_TEXTS[text] for text in texts}:
            raise damaged(
                self._source, "post_processor TemplateProcessing", f"it must hold {texts}"
            )
        return pieces

    def _piece(self, spec: Any) -> Text | Specials:
        match spec:
            case {"Sequence": {"id": str(text), "type_id": int(type_id)}}:
                return Text(_TEXTS[text], type_id)
            case {"SpecialToken": {"id": str(name), "type_id": int(type_id)}}:
                token = self._special_tokens[name]
                specials = Specials(tuple(token["ids"]), tuple(token["tokens"]), type_id)
                if len(specials.ids) != len(specials.tokens) or not all(
                    type(token_id) is int and token_id >= 0 for token_id in specials.ids
                ):
                    raise ValueError(f"the special token {name!r:.60}")
                return specials
        raise ValueError(f"the piece {spec!r:.60}")
