"""MXFP4, decoded: 4-bit numbers, of which 32 share a power of two.

Source: the OCP Microscaling Formats (MX) specification 1.0. It leaves the order within a byte open;
here, as in gpt-oss's files, the low half holds the number with the even index.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# E2M1 by its four bits: a sign, two bits of exponent (bias 1), one of mantissa.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NUMBERS = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)])
# E8M0: a bare exponent with the bias 127, of which the last is no number.
_SCALES = torch.tensor([*(2.0 ** (bits - 127) for bits in range(255)), math.nan])
_HALF = 16  # bytes of a block
# Bytes decoded at once, two numbers each: the work copies of so many are a few MiB.
_AT_ONCE = 1 << 18


def decode(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 `blocks` [..., n, 16] and their `scales` [..., n] to numbers [..., n * 32] in `dtype`.

    Exact in float32 and bfloat16, which have room for a number's two bits and its exponent. Raises
    ValueError where the shapes do not go together; on the meta device shapes are all there is.
    """
    *rows, n, half = blocks.shape
    if half != _HALF or scales.shape != (*rows, n):
        raise ValueError(f"blocks {list(blocks.shape)} do not go with scales {list(scales.shape)}")
    numbers = torch.empty(*rows, n * half * 2, dtype=dtype, device=blocks.device)
    if blocks.is_meta:
        return numbers
    flat = numbers.view(-1, n, half, 2)
    packed, exponents = blocks.reshape(-1, n, half), scales.reshape(-1, n)
    step = max(1, _AT_ONCE // (n * half))
    for at in range(0, len(flat), step):
        here = slice(at, at + step)
        pair, factor = packed[here].int(), _SCALES[exponents[here].int()][..., None]
        flat[here, ..., 0] = _NUMBERS[pair & 15] * factor
        flat[here, ..., 1] = _NUMBERS[pair >> 4] * factor
    return numbers
