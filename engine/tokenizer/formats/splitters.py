"""Reads the pre-tokenizer of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regex

from engine.errors import ModelFileError
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.formats.faults import unsupported
from engine.tokenizer.formats.fields import Default, take
from engine.tokenizer.formats.patterns import read_pattern
from engine.tokenizer.normalize.replace import Replace
from engine.tokenizer.split.pattern import BEHAVIORS, GPT2_WORDS, Split
from engine.tokenizer.split.prefix import Prefix
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.step import Rewriting, RewritingStart, Step

STAGE = "pre_tokenizer"


def read_splitter(spec: Any, source: str) -> Splitter:
    """Return the splitter that a pre-tokenizer describes; `source` is for errors."""
    return Splitter(_steps(spec, source))


def _steps(spec: Any, source: str) -> list[Step]:
    match spec:
        case None:
            return []
        case {"type": "Split"}:
            pattern, behavior, invert = take(
                spec, source, STAGE, pattern=dict, behavior=str, invert=bool
            )
            text = read_pattern(pattern, source, "pre_tokenizer Split")
            if behavior not in BEHAVIORS:
                raise ModelFileError(
                    f"{source}: the pre_tokenizer Split has the behavior {behavior!r:.60}, "
                    f"which is none of {', '.join(BEHAVIORS)}"
                )
            return [Split(text, behavior, invert)]
        case {"type": "Digits"}:
            (individual,) = take(spec, source, STAGE, individual_digits=bool)
            run = "" if individual else "+"
            return [Split(rf"\p{{N}}{run}|\P{{N}}+")]
        case {"type": "ByteLevel"}:
            add_prefix_space, _, use_regex = take(
                spec,
                source,
                STAGE,
                add_prefix_space=bool,
                trim_offsets=Default(bool, True),  # the post-processor's affair
                use_regex=Default(bool, True),
            )
            prefix = [Rewriting(Prefix(" "))] if add_prefix_space else []
            words = [Split(GPT2_WORDS)] if use_regex else []
            return [*prefix, *words, Rewriting(SpellBytes())]
        case {"type": "Metaspace"}:
            return _metaspace(spec, source)
        case {"type": "Whitespace"}:
            take(spec, source, STAGE)
            return [Split(r"\w+|[^\w\s]+", "Removed", invert=True)]
        case {"type": "WhitespaceSplit"}:
            take(spec, source, STAGE)
            return [Split(r"\S+", "Removed", invert=True)]
        case {"type": "Sequence"}:
            (parts,) = take(spec, source, STAGE, pretokenizers=list)
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, STAGE, spec)


def _metaspace(spec: Mapping[str, Any], source: str) -> list[Step]:
    """Return the steps of Metaspace; files before 2024 say `add_prefix_space` for the scheme."""
    replacement, scheme, older, split, _ = take(
        spec,
        source,
        STAGE,
        replacement=str,
        prepend_scheme=Default(str, None),
        add_prefix_space=Default(bool, None),
        split=Default(bool, True),
        str_rep=Default(str, None),  # the replacement again, in files of 2020
    )
    if scheme is None:
        scheme = "never" if older is False else "always"
    starts: dict[str, list[Step]] = {
        "always": [Rewriting(Prefix(replacement))],
        "first": [RewritingStart(Prefix(replacement))],
        "never": [],
    }
    if scheme not in starts or (older is False and scheme != "never") or len(replacement) != 1:
        raise ModelFileError(
            f"{source}: the pre_tokenizer Metaspace has the replacement {replacement!r:.60} and "
            f"the prepend_scheme {scheme!r:.60} with add_prefix_space {older}: it must be one "
            "character, and the scheme always, first, or never if there is no prefix space"
        )
    cut = [Split(regex.escape(replacement), "MergedWithNext")] if split else []
    return [Rewriting(Replace(" ", replacement)), *starts[scheme], *cut]
