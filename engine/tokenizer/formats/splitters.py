"""Reads the pre-tokenizer of a tokenizer.json."""

from __future__ import annotations

from typing import Any

import regex

from engine.errors import ModelFileError
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.formats.faults import unsupported
from engine.tokenizer.split.pattern import BEHAVIORS, GPT2_WORDS, Split
from engine.tokenizer.split.prefix import Prefix
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.step import Rewriting, Step

# Constructs that Ruby's syntax, in which these patterns are written, reads in another way.
_FOREIGN_REGEX = regex.compile(r"\\[hHRXKG]|&&|\(\?[a-z]*m|\[\[:")


def read_splitter(spec: Any, source: str) -> Splitter:
    """Return the splitter that a pre-tokenizer describes; `source` is for errors."""
    return Splitter(_steps(spec, source))


def _steps(spec: Any, source: str) -> list[Step]:
    match spec:
        case None:
            return []
        case {"type": "Split", "pattern": pattern, "behavior": str(behavior)} if (
            behavior in BEHAVIORS
        ):
            return [_split(pattern, behavior, bool(spec.get("invert", False)), source)]
        case {"type": "Digits"}:
            run = "" if spec.get("individual_digits", False) else "+"
            return [Split(rf"\p{{N}}{run}|\P{{N}}+")]
        case {"type": "ByteLevel"}:
            prefix = [Rewriting(Prefix(" "))] if spec.get("add_prefix_space", True) else []
            words = [Split(GPT2_WORDS)] if spec.get("use_regex", True) else []
            return [*prefix, *words, Rewriting(SpellBytes())]
        case {"type": "Sequence", "pretokenizers": list(parts)}:
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, "pre_tokenizer", spec)


def _split(pattern: Any, behavior: str, invert: bool, source: str) -> Split:
    match pattern:
        case {"String": str(text)} if text:
            return Split(regex.escape(text), behavior, invert)
        case {"Regex": str(text)} if not _FOREIGN_REGEX.search(text):
            try:
                return Split(text, behavior, invert)
            except regex.error:
                pass
    raise ModelFileError(
        f"{source}: the pre_tokenizer Split has a pattern that is not supported: {pattern!r:.200}"
    )
