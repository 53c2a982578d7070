"""Rotary position embedding (Su et al. 2021): frequencies, tables and the rotation.

Tables are made in float32 whatever the model's dtype and cast last: positions above 256 do not
survive bfloat16. Pair j of a head is (j, j + D/2), Hugging Face's convention.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.probe import Probe
from engine.spec import FrequencyDivisors, LinearScaling, Llama3Scaling, Rope

Table = tuple[Tensor, Tensor]


def frequencies(rope: Rope) -> Tensor:
    """Angle per position of each pair, float32 [D/2]: theta^(-2j/D), then scaled."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    base = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return base
        case LinearScaling(factor):
            return base / factor
        case FrequencyDivisors(divisors):
            return base / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(base, rope.scaling)


def _llama3(base: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Wavelengths over context/low are stretched by `factor`, under context/high kept, blended between.

    Source: the rope scaling of Llama 3.1 as transformers 5 defines it.
    """
    wavelength = 2 * math.pi / base
    turns = scaling.original_context / wavelength  # full turns within the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = (turns - low) / (high - low)
    blended = (1 - keep) * base / scaling.factor + keep * base
    scaled = torch.where(turns < low, base / scaling.factor, blended)
    return torch.where(turns > high, base, scaled)


def table(frequency: Tensor, positions: Tensor, dtype: torch.dtype) -> Table:
    """cos and sin of each new token's angles, both [T, D/2] in `dtype`."""
    angles = positions.float()[:, None] * frequency  # [T, D/2]
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Rotate(Probe):
    """Each pair of x [B, heads, T, D] turned by its token's angle."""

    def forward(self, x: Tensor, table: Table) -> Tensor:  # type: ignore[override]
        cos, sin = table
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
