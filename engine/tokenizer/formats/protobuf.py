"""Reads the wire format of Protocol Buffers: fields by number, nothing beyond the end of the file.

Source: the encoding as the Protocol Buffers documentation defines it.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A field's number and its value: a number, eight or four bytes, or any number of bytes.
Field = tuple[int, int | bytes]

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_LONGEST_VARINT = 10


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order; raise ValueError where it is damaged."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at) if message[at] & 0x80 else (message[at], at + 1)
        number, kind = key >> 3, key & 7
        if kind == _LENGTH and at < end and not message[at] & 0x80:
            size, at = message[at], at + 1  # as most are, so without a call
        elif kind == _LENGTH:
            size, at = _varint(message, at)
        elif kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"byte {at} begins a field of the unknown kind {kind}")
        if number == 0 or size > end - at:
            raise ValueError(f"the field {number} at byte {at} reaches past the end")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    value = 0
    for i, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError(f"the number at byte {at} does not end")


def signed(value: int) -> int:
    """Return a number whose field may be negative (int32)."""
    return value - (1 << 64) if value >> 63 else value
