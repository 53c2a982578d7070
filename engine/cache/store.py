"""Where numbers lie: slots in banks, and the two ways to name some of them.

A bank is a row of a contiguous cache, or all blocks of a paged one; a slot holds one token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Slots that lie side by side, the same of each bank: what is read of them is a view."""

    banks: slice
    slots: slice


@dataclass(frozen=True)
class Scattered:
    """Any slots, one bank for each of B sequences [B] and S slots in it [B, S]: read as a copy."""

    banks: Tensor
    slots: Tensor
    _rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def rows(self, heads: int, n_slots: int) -> Tensor:
        """Where they are among all (bank, head, slot): int64 [B * heads * S]; kept for the next layer."""
        if (heads, n_slots) not in self._rows:
            head = torch.arange(heads, device=self.slots.device)
            first = (self.banks[:, None] * heads + head) * n_slots  # [B, heads]
            self._rows[heads, n_slots] = (first[..., None] + self.slots[:, None]).flatten()
        return self._rows[heads, n_slots]


Place = Run | Scattered


class Store:
    """What a layer keeps of each token under one name: [banks, heads, slots, width], allocated now."""

    def __init__(
        self,
        banks: int,
        heads: int,
        slots: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Zeros, as a slot without a token may be multiplied by a weight of 0, and NaN times 0 is NaN.
        self.data = torch.zeros(banks, heads, slots, width, dtype=dtype, device=device)

    def write(self, place: Place, new: Tensor) -> None:
        """Puts new [B, heads, T, width] there."""
        match place:
            case Run(banks, slots):
                self.data[banks, :, slots] = new
            case Scattered():
                rows = place.rows(*self.data.shape[1:3])
                self.data.view(-1, new.shape[-1]).index_copy_(0, rows, new.flatten(0, 2))

    def read(self, place: Place) -> Tensor:
        """What is there: [B, heads, S, width]."""
        match place:
            case Run(banks, slots):
                return self.data[banks, :, slots]
            case Scattered():
                heads, n_slots, width = self.data.shape[1:]
                found = self.data.view(-1, width).index_select(0, place.rows(heads, n_slots))
                return found.view(*place.slots.shape[:1], heads, -1, width)

    def fill(self, place: Place, value: float) -> None:
        """Every number there becomes `value`."""
        self.write(place, torch.full_like(self.read(place), value))
