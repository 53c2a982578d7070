"""Weights in numbers of 8 or of 4 bits, which stand where a map's weight stood: weight-only quantisation.

Activations, sums, biases, norms, embeddings and routers stay as they are. Every number is the nearest that
there is, none is off by more than half a step, and nothing is learnt from data (round to nearest: Dettmers
et al. 2022, LLM.int8(); in groups: Frantar et al. 2023, GPTQ, section 4). Steps are kept in float32, in
bfloat16 where that is computed in, as torch's kernels want it; numbers go by the steps that are kept.

Three forms, each the only copy of its weight:

- `Int8Weight`: a step for each row.
- `Int4Weight`: a step and a middle for each 32 inputs. Where steps are compiled, what is a sum of products
  for other weights is one here too, and the compiler writes a loop that reads no more than these bytes.
  Elsewhere a few rows at a time become floating point, on their way into a matrix product.
- `PackedInt4Weight`: the same numbers as torch's bfloat16 kernels want them, in a graph or not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.errors import RequestError

GROUP = 32  # inputs of a row with a step and a middle of their own: 4-bit numbers
PIECE = 2**20  # numbers of a weight that are floating point at once
#: bfloat16 rows of which torch's int8 kernel is faster than a matrix product (measured: up to 24).
KERNEL_ROWS = 16
#: What the packed kernels want the outputs to be a multiple of.
PACKED_ROWS = 16


class Quantised(nn.Module):
    """Stands in for a weight [..., out, in]; leading axes are experts."""

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """x [..., in] to x Wᵀ [..., out]."""

    @abstractmethod
    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers that it stands for, [..., out, in]."""


class LooseWeight(Quantised):
    """Its tensors have a weight's leading axes, so that rows and experts can be picked."""

    @abstractmethod
    def inner(self, at: Any, x: Tensor) -> Tensor:
        """Sums over the last axis of W[at] times x [..., in], in float32; `at` indexes the leading axes."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that it is made of, in the order that makes another one."""
        return tuple(cast("Mapping[str, Tensor]", self._buffers).values())

    def __getitem__(self, at: Any) -> LooseWeight:
        return type(self)(*(part[at] for part in self.parts))

    def product(self, x: Tensor) -> Tensor:
        if torch.compiler.is_dynamo_compiling():
            return F.linear(x, self.dequantised(x.dtype))
        rows = max(1, PIECE // x.shape[-1])
        pieces = [part.split(rows) for part in self.parts]
        return torch.cat(
            [
                F.linear(x, type(self)(*piece).dequantised(x.dtype))
                for piece in zip(*pieces, strict=True)
            ],
            -1,
        )


class Int8Weight(LooseWeight):
    """Whole numbers from -127 to 127, int8 [..., out, in], times a step [..., out, 1]."""

    numbers: Tensor
    steps: Tensor

    def __init__(self, numbers: Tensor, steps: Tensor) -> None:
        super().__init__()
        self.register_buffer("numbers", numbers)
        self.register_buffer("steps", steps)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return (self.numbers * self.steps.float()).to(dtype)

    def inner(self, at: Any, x: Tensor) -> Tensor:
        sums: Tensor = (self.numbers[at].float() * x.float()).sum(-1)
        return sums * self.steps[at][..., 0]

    def product(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not self._has_kernel(rows):
            return super().product(x)
        done: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.numbers, self.steps[:, 0])
        return done.view(*x.shape[:-1], -1)

    def _has_kernel(self, rows: Tensor) -> bool:
        """torch 2.13's are slower than a product in other dtypes, and read past rows of other lengths."""
        n, length = rows.shape
        on_cpu = rows.device.type == "cpu" and rows.dtype == torch.bfloat16
        return on_cpu and n <= KERNEL_ROWS and length % 32 == 0


class Int4Weight(LooseWeight):
    """Whole numbers from -8 to 7 times a step, plus a middle, of each 32 inputs.

    A byte holds two of them plus 8, uint8 [..., out, groups, 16]: the j-th input of the group in its low
    bits, the (j + 16)-th in its high bits. Steps and middles are [..., out, groups, 1].
    """

    numbers: Tensor
    steps: Tensor
    middles: Tensor

    def __init__(self, numbers: Tensor, steps: Tensor, middles: Tensor) -> None:
        super().__init__()
        self.register_buffer("numbers", numbers)
        self.register_buffer("steps", steps)
        self.register_buffer("middles", middles)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        halves = self._halves(slice(None))
        return torch.cat(halves, -1).flatten(-2).to(dtype)

    def inner(self, at: Any, x: Tensor) -> Tensor:
        first, second = self._halves(at)
        x_first, x_second = x.float().unflatten(-1, (-1, 2, GROUP // 2)).unbind(-2)
        sums: Tensor = (first * x_first + second * x_second).sum((-2, -1))
        return sums

    def _halves(self, at: Any) -> tuple[Tensor, Tensor]:
        """The first and the second 16 inputs of each group, float32 [..., groups, 16]."""
        bits = self.numbers[at].int()  # which the compiler shifts faster than bytes
        steps, middles = self.steps[at].float(), self.middles[at].float()
        return ((bits & 15) - 8) * steps + middles, ((bits >> 4) - 8) * steps + middles


class PackedInt4Weight(Quantised):
    """The numbers of an Int4Weight [out, in] in torch's own order, which hangs on the processor; bfloat16.

    Rows of zeros fill up the last 16. Steps and middles are [groups, out, 2].
    """

    numbers: Tensor
    steps: Tensor

    def __init__(self, numbers: Tensor, steps: Tensor, middles: Tensor) -> None:
        """From numbers 0 to 15, uint8 [out, in], and steps and middles [out, groups, 1]."""
        super().__init__()
        self.n_in, self.n_out = numbers.shape[1], len(numbers)
        fill = -self.n_out % PACKED_ROWS
        both = F.pad(torch.cat((steps, middles), -1), (0, 0, 0, 0, 0, fill))
        self.register_buffer("numbers", _packed(F.pad(numbers, (0, 0, 0, fill))))
        self.register_buffer("steps", both.transpose(0, 1).contiguous())

    def product(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.n_in)
        aten = torch.ops.aten
        cuda = x.is_cuda
        multiply = aten._weight_int4pack_mm if cuda else aten._weight_int4pack_mm_for_cpu
        done: Tensor = multiply(rows, self.numbers, GROUP, self.steps)
        return done[:, : self.n_out].reshape(*x.shape[:-1], self.n_out)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Rounded to bfloat16, as no kernel tells more."""
        one_each = torch.eye(self.n_in, dtype=self.steps.dtype, device=self.steps.device)
        return self.product(one_each).T.to(dtype)


def _packed(numbers: Tensor) -> Tensor:
    """Numbers uint8 [out, in] as the kernels of their device want them."""
    if numbers.is_cuda:
        pairs = numbers[:, ::2] << 4 | numbers[:, 1::2]
        # 2: the fewest tiles of 16 inputs side by side, as 32 inputs are what there is for certain.
        cuda: Tensor = torch.ops.aten._convert_weight_to_int4pack(pairs, 2)
        return cuda
    cpu: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.int(), 2)
    return cpu


Weight = Tensor | LooseWeight | PackedInt4Weight


# -- quantising ------------------------------------------------------------------------------------


def int8(weight: Tensor, dtype: torch.dtype) -> Int8Weight:
    """A weight float32 [..., out, in], to be computed with in `dtype`."""
    return Int8Weight(*_in_pieces(to_int8, weight, dtype))


def int4(weight: Tensor, dtype: torch.dtype) -> Quantised:
    """The same, whose inputs must be a multiple of 32."""
    numbers, steps, middles = _in_pieces(to_int4, weight, dtype)
    if dtype == torch.bfloat16 and weight.ndim == 2:
        return PackedInt4Weight(numbers.flatten(-2), steps, middles)
    first, second = numbers.chunk(2, -1)
    return Int4Weight(first | second << 4, steps, middles)


@dataclass(frozen=True)
class Kind:
    """`quantise` makes a weight of it in some dtype, if its inputs are a multiple of `inputs`."""

    quantise: Callable[[Tensor, torch.dtype], Quantised]
    inputs: int


KINDS: Mapping[str, Kind] = {"int8": Kind(int8, 1), "int4": Kind(int4, GROUP)}


def check_quantization(kind: str | None, batch_invariant: bool) -> None:
    """Raises RequestError where there are no such weights, or none whose bits stay the same."""
    if kind is None:
        return
    if kind not in KINDS:
        raise RequestError(f"no quantization {kind!r}; there are {', '.join(KINDS)}")
    if batch_invariant:
        raise RequestError(
            "the batch-invariant mode has no kernels for quantised weights; ask for one of the two"
        )


def to_int8(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows float32 [n, in] as numbers int8 [n, in] and steps [n, 1]: the largest becomes ±127."""
    steps = _kept(rows.abs().amax(-1, keepdim=True) / 127, dtype)
    return (rows / steps.float()).round().to(torch.int8), steps


def to_int4(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows float32 [n, in] as numbers plus 8, uint8 [n, groups, 32], steps and middles [n, groups, 1].

    The least of a group is -8 steps from the middle and the largest 7, so that both are exact: rounding
    them costs a model far more than smaller steps gain (docs/measurements/quantised.md).
    """
    groups = rows.unflatten(-1, (-1, GROUP))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    steps = high / 15 - low / 15
    middles = (low + 8 * steps).to(_step_dtype(dtype))
    # A middle that is rounded by more than half a step leaves an end outside, unless steps are larger.
    middle = middles.float()
    needed = torch.maximum(high / 7.5 - middle / 7.5, middle / 8.5 - low / 8.5)
    steps = _kept(torch.maximum(steps, needed), dtype)
    numbers = ((groups - middle) / steps.float()).round().clamp(-8, 7) + 8
    return numbers.to(torch.uint8), steps, middles


def _step_dtype(dtype: torch.dtype) -> torch.dtype:
    """float16 ends at 6e-05 with all of its bits, under which many steps are."""
    return dtype if dtype == torch.bfloat16 else torch.float32


def _kept(steps: Tensor, dtype: torch.dtype) -> Tensor:
    """Steps as they are kept: no smaller, as numbers must not leave their range, and never 0."""
    kept = steps.clamp(min=torch.finfo(torch.float32).tiny).to(_step_dtype(dtype))
    above = torch.nextafter(kept, torch.full_like(kept, torch.inf))
    return torch.where(kept.float() < steps, above, kept)


def _in_pieces(
    quantise: Callable[[Tensor, torch.dtype], tuple[Tensor, ...]],
    weight: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    """Some rows at a time, each in its place, so that no further copy of a weight is made on the way."""
    *leading, n_in = weight.shape
    rows = weight.reshape(-1, n_in)
    step = max(1, PIECE // n_in)
    whole: list[Tensor] = []
    for start in range(0, len(rows), step):
        parts = quantise(rows[start : start + step], dtype)
        whole = whole or [part.new_empty(len(rows), *part.shape[1:]) for part in parts]
        for all_rows, some in zip(whole, parts, strict=True):
            all_rows[start : start + step] = some
    return tuple(part.unflatten(0, leading) for part in whole)
