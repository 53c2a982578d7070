"""Reads the normalizer of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.tokenizer.aligned import Chain, Rewrite
from engine.tokenizer.formats.faults import unsupported
from engine.tokenizer.normalize.forms import UnicodeForm


def read_normalizer(spec: Any, source: str) -> Rewrite:
    """Return the rewrite that a normalizer describes; `source` is for errors."""
    match spec:
        case None:
            return Chain()
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}:
            return UnicodeForm(form)
        case {"type": "Sequence", "normalizers": list(steps)}:
            return Chain(tuple(read_normalizer(step, source) for step in steps))
    raise unsupported(source, "normalizer", spec)
