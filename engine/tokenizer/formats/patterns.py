"""Reads the pattern of a component, which is a text or a regular expression."""

from __future__ import annotations

from typing import Any

import regex

from engine.errors import ModelFileError
from engine.tokenizer.patterns.names import UnsupportedPatternError
from engine.tokenizer.patterns.oniguruma import translated


def read_pattern(spec: Any, source: str, component: str) -> str:
    """Return the pattern in the syntax of the `regex` package; `component` is for errors."""
    match spec:
        case {"String": str(text)} if len(spec) == 1:
            return str(regex.escape(text))
        case {"Regex": str(text)} if len(spec) == 1:
            try:
                return translated(text)
            except UnsupportedPatternError as error:
                raise ModelFileError(
                    f"{source}: the {component} has a pattern that is not supported: "
                    f"{error}: {text!r:.200}"
                ) from error
    raise ModelFileError(
        f'{source}: the {component} has {spec!r:.200} for its pattern, which must be {{"String": '
        '...} or {"Regex": ...}: fetch the file again'
    )
