"""Where numbers lie: slots in banks, the two ways to name some of them, and the two ways to keep them.

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
        """Where they are among all (bank, head, slot): int64 [B * heads * S].

        Kept for the next layer, but in a graph, where each layer computes it.
        """
        if torch.compiler.is_dynamo_compiling():
            return self._rows_of(heads, n_slots)
        if (heads, n_slots) not in self._rows:
            self._rows[heads, n_slots] = self._rows_of(heads, n_slots)
        return self._rows[heads, n_slots]

    def _rows_of(self, heads: int, n_slots: int) -> Tensor:
        head = torch.arange(heads, device=self.slots.device)
        first = (self.banks[:, None] * heads + head) * n_slots  # [B, heads]
        return (first[..., None] + self.slots[:, None]).flatten()


Place = Run | Scattered
Shape = tuple[int, int, int, int]  # banks, heads, slots, width


class Store:
    """What a layer keeps of each token under one name: [banks, heads, slots, width], allocated now."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        # Zeros, as a slot without a token may be multiplied by a weight of 0, and NaN times 0 is NaN.
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    @staticmethod
    def row_bytes(width: int, dtype: torch.dtype) -> int:
        """What one token of one head takes."""
        return width * dtype.itemsize

    @property
    def parts(self) -> tuple[Store, ...]:
        """The stores that it is made of, each a single tensor."""
        return (self,)

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

    def copy(self, source: slice, target: slice) -> None:
        """Puts what is in the slots `source` of each bank into its slots `target`, as it is stored."""
        self.data[:, :, target] = self.data[:, :, source]


class Int8Store:
    """A store whose numbers are whole, from -127 to 127, times a scale of each token and head.

    The scale is what makes the largest number 127, so that nothing is off by more than half of it. A
    token is read as it was kept from its own forward pass on, however the sequence is cut into passes.
    Source: vector-wise symmetric quantisation, Dettmers et al. 2022 (LLM.int8()), section 2.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.numbers = Store(shape, torch.int8, device)
        self.scales = Store((*shape[:3], 1), torch.float32, device)

    @staticmethod
    def row_bytes(width: int, dtype: torch.dtype) -> int:
        return Store.row_bytes(width, torch.int8) + Store.row_bytes(1, torch.float32)

    @property
    def parts(self) -> tuple[Store, ...]:
        return self.numbers, self.scales

    def write(self, place: Place, new: Tensor) -> None:
        numbers, scale = to_int8(new)
        self.numbers.write(place, numbers)
        self.scales.write(place, scale)

    def read(self, place: Place) -> Tensor:
        return (self.numbers.read(place) * self.scales.read(place)).to(self.dtype)


StoreKind = type[Store] | type[Int8Store]


def to_int8(new: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., width] as whole numbers int8 [..., width] and their scale, float32 [..., 1]."""
    largest = new.abs().amax(-1, keepdim=True).float()
    # Never 0, so that a row of zeros stays one.
    scale = (largest / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (new / scale).round().to(torch.int8), scale
