"""From measured noise to what is allowed, row by row.

A row is the last dimension of a probe at one token, of one head. Its error is allowed up to

    k * r * scale + eps/2 * scale          scale = the truth's largest magnitude in the row

where r is the probe's own relative noise, measured on legal re-orderings of the oracle against its
float64 truth, and eps the run dtype's. The same holds for the root mean square of the row's error,
with its own r, so that a bias cannot hide under one large element. k is the only choice in this
policy; nobody edits a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

#: How many times the measured noise an engine may show: FlashAttention's factor for one operation,
#: one more for a whole run, in which errors add up.
K = {"lockstep": 2.0, "free": 3.0}


@dataclass(frozen=True)
class Noise:
    """A probe's noise relative to its rows' scales, over `rows` rows of the ensemble."""

    largest: float
    rms: float
    rows: int

    def merge(self, other: Noise) -> Noise:
        return Noise(
            max(self.largest, other.largest), max(self.rms, other.rms), self.rows + other.rows
        )


@dataclass(frozen=True)
class Envelope:
    """The allowances of one kind of run ("lockstep" or "free"); `floor` is the dtype's eps/2."""

    run: str
    floor: float
    noise: Mapping[str, Noise]

    def allowance(self, probe: str) -> tuple[float, float]:
        """Largest and root-mean-square error allowed in a row, relative to the row's scale."""
        noise = self.noise[probe]
        return (
            K[self.run] * noise.largest + self.floor,
            K[self.run] * noise.rms + self.floor,
        )


@dataclass(frozen=True)
class RowErrors:
    """Errors of each row relative to its scale: tensors of the value's shape without its last axis."""

    largest: Tensor
    rms: Tensor

    def noise(self) -> Noise:
        return Noise(float(self.largest.max()), float(self.rms.max()), self.largest.numel())


def row_errors(value: Tensor, truth: Tensor) -> RowErrors:
    """Compares value and truth [..., row] in float64; places where the truth is -inf do not count.

    A row whose truth is zero throughout has no scale: any error in it is beyond every allowance.
    """
    masked = truth == -torch.inf
    if masked.any():
        value = value.masked_fill(masked, 0.0)
        truth = truth.masked_fill(masked, 0.0)
        count: Tensor | int = (~masked).sum(-1).clamp(min=1)
    else:
        count = truth.shape[-1]
    error = (value.double() - truth.double()).abs()
    scale = truth.double().abs().amax(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return RowErrors(
        largest=error.amax(-1) / scale,
        rms=(error.square().sum(-1) / count).sqrt() / scale,
    )


def half_step(dtype: torch.dtype) -> float:
    """Half the machine epsilon of a run's dtype: the relative error of one rounding."""
    return torch.finfo(dtype).eps / 2
