"""Reads the decoder of a tokenizer.json."""

from __future__ import annotations

from typing import Any

from engine.tokenizer.decode.byte_level import ByteLevelDecoder
from engine.tokenizer.decode.decoder import Decoder
from engine.tokenizer.formats.faults import unsupported


def read_decoder(spec: Any, source: str) -> Decoder:
    """Return the decoder that a file describes; `source` is for errors."""
    match spec:
        case {"type": "ByteLevel"}:
            return ByteLevelDecoder()
        case {"type": "Sequence", "decoders": [only]}:
            return read_decoder(only, source)
    raise unsupported(source, "decoder", spec)
