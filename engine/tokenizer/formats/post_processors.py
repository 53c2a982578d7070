"""Reads the post-processor of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelFileError
from engine.tokenizer.formats.faults import unsupported
from engine.tokenizer.post import PostProcessor, PostStep, Template, TrimOffsets


def read_post_processor(spec: Any, source: str) -> PostProcessor:
    """Return the steps that a post-processor describes; `source` is for errors."""
    steps = _steps(spec, source)
    if sum(isinstance(step, Template) for step in steps) > 1:
        # The reference lets the first one win; no real file has two.
        raise ModelFileError(
            f"{source}: more than one post_processor TemplateProcessing is not supported"
        )
    return PostProcessor(steps)


def _steps(spec: Any, source: str) -> list[PostStep]:
    match spec:
        case None:
            return []
        case {"type": "ByteLevel"}:
            if not spec.get("trim_offsets", True):
                return []
            return [TrimOffsets(prefix_space=bool(spec.get("add_prefix_space", True)))]
        case {
            "type": "TemplateProcessing",
            "single": list(pieces),
            "special_tokens": dict(special_tokens),
        }:
            return [_template(pieces, special_tokens, source)]
        case {"type": "Sequence", "processors": list(parts)}:
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, "post_processor", spec)


def _template(pieces: list[Any], special_tokens: dict[str, Any], source: str) -> Template:
    """Return the template of a single text: special tokens around one sequence."""
    sides: list[list[tuple[int, str]]] = [[]]
    texts = []
    try:
        for piece in pieces:
            if "Sequence" in piece:
                texts.append(piece["Sequence"]["id"])
                sides.append([])
            else:
                token = special_tokens[piece["SpecialToken"]["id"]]
                sides[-1] += zip(token["ids"], token["tokens"], strict=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{source}: the post_processor TemplateProcessing is damaged ({error})"
        ) from error
    if texts != ["A"]:
        raise ModelFileError(
            f"{source}: the post_processor TemplateProcessing must hold the text once"
        )
    return Template(tuple(sides[0]), tuple(sides[1]))
