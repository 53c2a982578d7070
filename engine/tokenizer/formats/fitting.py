"""Reads the blocks `truncation` and `padding` of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.tokenizer.fitting import Padding, Truncation
from engine.tokenizer.formats.faults import unsupported


def read_truncation(spec: Any, source: str) -> Truncation | None:
    """Return what a truncation block asks for; `source` is for errors.

    A stride is for the texts that are cut off, which are not kept here.
    """
    match spec:
        case None:
            return None
        case {
            "max_length": int(length),
            "strategy": "LongestFirst" | "OnlyFirst" | "OnlySecond" as strategy,
        } if length >= 0:
            match spec.get("direction", "Right"):
                case "Left" | "Right" as direction:
                    return Truncation(length, strategy, direction)
    raise unsupported(source, "truncation", spec)


def read_padding(spec: Any, source: str) -> Padding | None:
    """Return what a padding block asks for; `source` is for errors."""
    match spec:
        case None:
            return None
        case {
            "strategy": "BatchLongest" | {"Fixed": int()} as strategy,
            "direction": "Left" | "Right" as direction,
            "pad_id": int(pad_id),
            "pad_type_id": int(pad_type_id),
            "pad_token": str(pad_token),
        } if isinstance(multiple_of := spec.get("pad_to_multiple_of"), int | None):
            return Padding(
                pad_id,
                pad_token,
                strategy["Fixed"] if isinstance(strategy, dict) else None,
                multiple_of,
                direction,
                pad_type_id,
            )
    raise unsupported(source, "padding", spec)
