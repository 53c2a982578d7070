"""Every assigned character, save that of the large blocks of one kind a few stand for all."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.strategies.texts import assigned

# Ideographs, syllables and private use.
_LARGE = (
    range(0x3400, 0xA000),
    range(0xAC00, 0xD800),
    range(0xE000, 0xF900),
    range(0x13000, 0x14700),
    range(0x17000, 0x18D00),
    range(0x1B000, 0x1B300),
    range(0x20000, 0x110000),
)


def _codes() -> Iterator[int]:
    for code in range(0x110000):
        large = next((block for block in _LARGE if code in block), None)
        if large is None or code in (large[0], large[-1]) or code % 97 == 0:
            yield code


EVERY = [chr(code) for code in _codes() if not 0xD800 <= code < 0xE000 and assigned(chr(code))]
