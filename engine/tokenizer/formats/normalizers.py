"""Reads the normalizer of a tokenizer.json."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.alphabet import SpellBytes
from engine.tokenizer.formats.faults import damaged, unsupported
from engine.tokenizer.formats.fields import Default, take
from engine.tokenizer.formats.patterns import read_pattern
from engine.tokenizer.normalize.case import Lowercase
from engine.tokenizer.normalize.charsmap import Charsmap
from engine.tokenizer.normalize.forms import UnicodeForm
from engine.tokenizer.normalize.precompiled import Precompiled
from engine.tokenizer.normalize.prepend import Prepend
from engine.tokenizer.normalize.replace import Replace, ReplacePattern
from engine.tokenizer.normalize.strip import Strip
from engine.tokenizer.normalize.substitute import NMT, STRIP_ACCENTS, bert_normalizer

STAGE = "normalizer"


def read_normalizer(spec: Any, source: str) -> Rewrite:
    """Return the rewrite that a normalizer describes; `source` is for errors."""
    match spec:
        case None:
            return Chain()
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}:
            take(spec, source, STAGE)
            return UnicodeForm(form)
        case {"type": "Lowercase"}:
            take(spec, source, STAGE)
            return Lowercase()
        case {"type": "Strip"}:
            left, right = take(spec, source, STAGE, strip_left=bool, strip_right=bool)
            return Strip(left, right)
        case {"type": "Prepend"}:
            (prefix,) = take(spec, source, STAGE, prepend=str)
            return Prepend(prefix)
        case {"type": "Replace"}:
            pattern, content = take(spec, source, STAGE, pattern=dict, content=str)
            if pattern.keys() == {"String"} and isinstance(pattern["String"], str):
                return Replace(pattern["String"], content)
            return ReplacePattern(read_pattern(pattern, source, "normalizer Replace"), content)
        case {"type": "StripAccents"}:
            take(spec, source, STAGE)
            return STRIP_ACCENTS
        case {"type": "Nmt"}:
            take(spec, source, STAGE)
            return NMT
        case {"type": "ByteLevel"}:
            take(spec, source, STAGE)
            return SpellBytes()
        case {"type": "BertNormalizer"}:
            clean, chinese, accents, lowercase = take(
                spec,
                source,
                STAGE,
                clean_text=bool,
                handle_chinese_chars=bool,
                strip_accents=Default(bool, None),
                lowercase=bool,
            )
            return bert_normalizer(
                clean, chinese, lowercase if accents is None else accents, lowercase
            )
        case {"type": "Precompiled"}:
            (charsmap,) = take(spec, source, STAGE, precompiled_charsmap=str)
            try:
                return Precompiled(Charsmap(b64decode(charsmap, validate=True)))
            except ValueError as error:
                raise damaged(source, "precompiled_charsmap of the normalizer", error) from error
        case {"type": "Sequence"}:
            (steps,) = take(spec, source, STAGE, normalizers=list)
            return _flat(Chain(tuple(read_normalizer(step, source) for step in steps)))
    raise unsupported(source, STAGE, spec)


def _flat(chain: Chain) -> Chain:
    """Return a chain with the steps of the chains in it, which are flat, beside its own."""
    steps = [step.steps if isinstance(step, Chain) else (step,) for step in chain.steps]
    return Chain(tuple(part for parts in steps for part in parts))
