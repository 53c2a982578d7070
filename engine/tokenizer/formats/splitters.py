"""Reads the pre-tokenizer of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regex

from engine.errors import ModelFileError
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.formats.faults import unsupported
from engine.tokenizer.formats.fields import Default, one_character, take
from engine.tokenizer.formats.metaspace import read_metaspace
from engine.tokenizer.formats.patterns import read_pattern
from engine.tokenizer.normalize.prepend import Prefix
from engine.tokenizer.normalize.replace import Replace
from engine.tokenizer.split.length import FixedLength
from engine.tokenizer.split.pattern import BEHAVIORS, GPT2_WORDS, Split
from engine.tokenizer.split.scripts import script_words
from engine.tokenizer.split.splitter import Splitter
from engine.tokenizer.split.step import Rewriting, RewritingStart, Step
from engine.tokenizer.unicode_tables import NOT_PUNCTUATION, PUNCTUATION

STAGE = "pre_tokenizer"

# A younger character that is punctuation now and was none then is in neither of the sets.
BERT_WORDS = rf"{PUNCTUATION}|(?:{NOT_PUNCTUATION}+|(?!{PUNCTUATION})\S)+"


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
            _check_behavior(behavior, source, "Split")
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
        case {"type": "CharDelimiterSplit"}:
            (delimiter,) = take(spec, source, STAGE, delimiter=str)
            one_character(delimiter, STAGE, spec, source)
            return [Split(f"[^{regex.escape(delimiter)}]+", "Removed", invert=True)]
        case {"type": "Punctuation"}:
            (behavior,) = take(spec, source, STAGE, behavior=Default(str, "Isolated"))
            _check_behavior(behavior, source, "Punctuation")
            return [Split(PUNCTUATION, behavior)]
        case {"type": "BertPreTokenizer"}:
            take(spec, source, STAGE)
            return [Split(BERT_WORDS, "Removed", invert=True)]
        case {"type": "UnicodeScripts"}:
            take(spec, source, STAGE)
            return [Split(script_words(), "Removed", invert=True)]
        case {"type": "FixedLength"}:
            (length,) = take(spec, source, STAGE, length=Default(int, 5))
            if length < 1:
                raise ModelFileError(
                    f"{source}: the pre_tokenizer FixedLength has the length {length}, "
                    "which cuts no text"
                )
            return [FixedLength(length)]
        case {"type": "Sequence"}:
            (parts,) = take(spec, source, STAGE, pretokenizers=list)
            return [step for part in parts for step in _steps(part, source)]
    raise unsupported(source, STAGE, spec)


def _check_behavior(behavior: str, source: str, component: str) -> None:
    if behavior not in BEHAVIORS:
        raise ModelFileError(
            f"{source}: the pre_tokenizer {component} has the behavior {behavior!r:.60}, "
            f"which is none of {', '.join(BEHAVIORS)}"
        )


def _metaspace(spec: Mapping[str, Any], source: str) -> list[Step]:
    replacement, scheme, split = read_metaspace(spec, source, STAGE)
    starts: dict[str, list[Step]] = {
        "always": [Rewriting(Prefix(replacement))],
        "first": [RewritingStart(Prefix(replacement))],
        "never": [],
    }
    mark = regex.escape(replacement)
    cut = [Split(f"{mark}?[^{mark}]+|{mark}")] if split else []  # a mark goes with what follows
    return [Rewriting(Replace(" ", replacement)), *starts[scheme], *cut]
