"""Reads the decoder of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.tokenizer.decode.byte_fallback import ByteFallback
from engine.tokenizer.decode.byte_level import ByteLevel
from engine.tokenizer.decode.decoder import Decoder, Step
from engine.tokenizer.decode.rules import Continued, Replaced, Strip
from engine.tokenizer.decode.sequence import StepDecoder
from engine.tokenizer.decode.steps import Each, FirstApart, Fuse, WordEnd
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.formats.fields import Default, one_character, take
from engine.tokenizer.formats.metaspace import read_metaspace
from engine.tokenizer.formats.patterns import read_pattern
from engine.tokenizer.normalize.replace import Replace, ReplacePattern

STAGE = "decoder"

# How the library tidies up after the spaces that WordPiece puts before every word, in its order.
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def read_decoder(spec: Any, source: str) -> Decoder:
    """Return the decoder that a file describes; `source` is for errors.

    Without one the tokens are put side by side with a space between, as in the reference.
    """
    if spec is None:
        return StepDecoder([FirstApart(Each([]), Each([Continued(None)]))])
    return StepDecoder(_steps(spec, source))


def _steps(spec: Any, source: str) -> list[Step]:
    match spec:
        case {"type": "ByteLevel"}:
            # They are about encoding; the library writes them for each of its three uses.
            flag = Default(bool, True)
            take(spec, source, STAGE, add_prefix_space=flag, trim_offsets=flag, use_regex=flag)
            return [ByteLevel()]
        case {"type": "ByteFallback"}:
            take(spec, source, STAGE)
            return [ByteFallback()]
        case {"type": "Fuse"}:
            take(spec, source, STAGE)
            return [Fuse()]
        case {"type": "Strip"}:
            content, start, stop = take(spec, source, STAGE, content=str, start=int, stop=int)
            if min(start, stop) < 0:
                raise damaged(source, f"{STAGE} Strip", "start and stop must be from 0 up")
            return [Each([Strip(one_character(content, STAGE, spec, source), start, stop)])]
        case {"type": "Replace"}:
            pattern, content = take(spec, source, STAGE, pattern=dict, content=str)
            match pattern:
                case {"String": str(text), **others} if not others:
                    return [Each([Replaced(Replace(text, content))])]
            found = read_pattern(pattern, source, f"{STAGE} Replace")
            return [Each([Replaced(ReplacePattern(found, content))])]
        case {"type": "Metaspace"}:
            return [_metaspace(spec, source)]
        case {"type": "WordPiece"}:
            prefix, cleanup = take(spec, source, STAGE, prefix=str, cleanup=bool)
            tidied = [Replaced(Replace(old, new)) for old, new in _CLEANUP] if cleanup else []
            return [FirstApart(Each([]), Each([Continued(prefix)])), Each(tidied)]
        case {"type": "BPEDecoder"}:
            (suffix,) = take(spec, source, STAGE, suffix=str)
            return [WordEnd(suffix)]
        case {"type": "Sequence"}:
            (decoders,) = take(spec, source, STAGE, decoders=list)
            return [step for decoder in decoders for step in _steps(decoder, source)]
    raise unsupported(source, STAGE, spec)


def _metaspace(spec: dict[str, Any], source: str) -> FirstApart:
    """Return the step that makes spaces of a character; the first token may lose it instead."""
    character, scheme, _ = read_metaspace(spec, source, STAGE)
    of_first = " " if scheme == "never" else ""
    first, others = Replace(character, of_first), Replace(character, " ")
    return FirstApart(Each([Replaced(first)]), Each([Replaced(others)]))
