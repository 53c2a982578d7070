"""How two versions of one tensor differ: bit by bit, and row by row."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def changed_bits(before: Tensor, after: Tensor) -> Tensor:
    """Where two contiguous tensors of one shape and dtype are not the same to the bit."""
    bits = _BITS[before.element_size()]
    return before.view(bits) != after.view(bits)


def row_differences(before: Tensor, after: Tensor, scale: Tensor | None = None) -> Tensor:
    """The largest difference in each row [..., row] relative to the row's scale, float64.

    `scale` is by default the row's largest finite magnitude before. What became infinite or no number,
    or ceased to be, differs infinitely; any change in a row of zeros is beyond every allowance.
    """
    before, after = before.double(), after.double()
    same = (before == after) | (before.isnan() & after.isnan())
    difference = (after - before).abs().masked_fill(same, 0.0)
    difference = difference.nan_to_num(nan=torch.inf, posinf=torch.inf)
    if scale is None:
        scale = before.abs().nan_to_num(nan=0.0, posinf=0.0).amax(-1)
    return difference.amax(-1) / scale.double().clamp(min=torch.finfo(torch.float64).tiny)
