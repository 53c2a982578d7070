"""From measured noise to what is allowed, row by row.

A row is the last dimension of a probe at one token, of one head. Its error is measured three ways,
each relative to the row's scale:

    largest   of its elements
    rms       root mean square, so that a bias cannot hide under one large element
    along     the part that lies along the truth, sum(e t) / (|t| sqrt(n)): a wrong factor stands out
              here, because rounding averages away over the n elements

and each is allowed up to

    k * r + floor + rounding

where r is the probe's own noise of that kind, measured on legal re-orderings of the oracle against
its float64 truth, and the floor one rounding of the run's dtype, eps/2, which for `along` averages
to eps/2 / sqrt(n). `rounding` is 0, but in a cache that keeps its numbers coarser than the run's dtype:
half of its own step, which may lie along the truth in full. k is the only choice in this policy; nobody
edits a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

#: How many times the measured noise an engine may show: FlashAttention's factor for one operation,
#: one more for a whole run, in which errors add up.
K = {"lockstep": 2.0, "free": 3.0}

_TINY = torch.finfo(torch.float64).tiny
_BLOCK = 2**20  # numbers that are compared at once


@dataclass(frozen=True)
class Noise:
    """A probe's largest errors of each kind, over `rows` rows of the ensemble."""

    largest: float
    rms: float
    along: float
    rows: int

    def merge(self, other: Noise) -> Noise:
        return Noise(
            max(self.largest, other.largest),
            max(self.rms, other.rms),
            max(self.along, other.along),
            self.rows + other.rows,
        )


@dataclass(frozen=True)
class RowErrors:
    """Errors of each row relative to its scale: tensors of the value's shape without its last axis."""

    largest: Tensor
    rms: Tensor
    along: Tensor
    count: Tensor  # elements of a row that are compared

    def noise(self) -> Noise:
        rows = self.largest.numel()
        return Noise(
            float(self.largest.max()), float(self.rms.max()), float(self.along.max()), rows
        )


@dataclass(frozen=True)
class Envelope:
    """The allowances of one kind of run ("lockstep" or "free"); `floor` is the dtype's eps/2."""

    run: str
    floor: float
    noise: Mapping[str, Noise]
    rounding: float = 0.0

    def with_cache(self, rounding: float) -> Callable[[str], Envelope]:
        """The envelope of each probe: those of the cache have room for the candidate's own rounding."""
        of_cache = replace(self, rounding=rounding)
        return lambda probe: of_cache if probe.startswith("cache.") else self

    def allowance(self, probe: str) -> float:
        """The largest error of an element that is allowed, relative to its row's scale."""
        return K[self.run] * self.noise[probe].largest + self.floor + self.rounding

    def kinds(self, probe: str, errors: RowErrors) -> dict[str, tuple[Tensor, Tensor]]:
        """For each kind of error its rows, and what they are allowed."""
        k, noise, rounding = K[self.run], self.noise[probe], self.rounding
        one = torch.ones_like(errors.count)
        along = k * noise.along + self.floor / errors.count.sqrt() + rounding
        return {
            "largest": (errors.largest, (k * noise.largest + self.floor + rounding) * one),
            "rms": (errors.rms, (k * noise.rms + self.floor + rounding) * one),
            "along": (errors.along, along),
        }

    def shares(self, probe: str, errors: RowErrors) -> Tensor:
        """How much of its allowance each row used, by the kind of error that used most."""
        kinds = self.kinds(probe, errors).values()
        return torch.stack([error / allowed for error, allowed in kinds]).amax(0)


def row_errors(value: Tensor, truth: Tensor, scale: Tensor | None = None) -> RowErrors:
    """Compares value [B, ..., row] and truth [..., row] in float64; where the truth is -inf nothing counts.

    `scale` is that of each row, the truth's largest magnitude by default. A row whose truth is zero
    throughout has none: any error in it is beyond every allowance.
    """
    if scale is None:
        scale = truth.abs().masked_fill(truth == -torch.inf, 0.0).amax(-1)
    scale = scale.double().clamp(min=_TINY)
    if value.numel() <= _BLOCK:
        return RowErrors(*_errors(value, truth, scale))
    # Block by block: float64 copies of long attention rows would not fit beside a real model.
    lead, width = value.shape[:-1], value.shape[-1]
    rows = value.reshape(-1, width)
    truths = truth.expand(value.shape).reshape(-1, width)
    scales = scale.expand(lead).reshape(-1)
    size = max(1, _BLOCK // width)
    blocks = map(_errors, rows.split(size), truths.split(size), scales.split(size))
    return RowErrors(*(torch.cat(parts).view(lead) for parts in zip(*blocks, strict=True)))


def _errors(value: Tensor, truth: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """The fields of RowErrors for values [..., row], their truths and scales, which may lack the batch."""
    value, truth = value.double(), truth.double()
    masked = truth == -torch.inf
    truth = truth.masked_fill(masked, 0.0)
    error = value.masked_fill(masked, 0.0) - truth
    count = (~masked).sum(-1).clamp(min=1).double()
    length = truth.square().sum(-1).sqrt().clamp(min=_TINY)
    return (
        error.abs().amax(-1) / scale,
        (error.square().sum(-1) / count).sqrt() / scale,
        ((error * truth).sum(-1) / length).abs() / count.sqrt() / scale,
        count.expand(value.shape[:-1]),
    )


def largest_at(rows: Tensor) -> tuple[int, ...]:
    """The place of a tensor's largest number, one index per axis."""
    # torch.unravel_index does this too, and imports sympy for seconds on its first call.
    return tuple(int(i) for i in np.unravel_index(int(rows.argmax()), rows.shape))


def half_step(dtype: torch.dtype) -> float:
    """Half the machine epsilon of a run's dtype: the relative error of one rounding."""
    return torch.finfo(dtype).eps / 2
