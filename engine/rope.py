"""Rotary position embedding (Su et al. 2021): frequencies, tables and the rotation.

Tables are made in float32 whatever the model's dtype and cast last: positions above 256 do not
survive bfloat16. Pair j of a head is (j, j + D/2), Hugging Face's convention, unless the weights are
interleaved; D is the number of a head's dimensions that are turned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from engine.probe import Probe
from engine.spec import (
    DynamicScaling,
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)

Table = tuple[Tensor, Tensor]


def follows_length(rope: Rope) -> bool:
    """Whether the frequencies depend on how many tokens the sequence has."""
    return isinstance(rope.scaling, DynamicScaling | LongRopeScaling)


def regime(rope: Rope, length: int) -> int:
    """What the frequencies depend on in a sequence of `length` tokens: where it is the same, so are they."""
    match rope.scaling:
        case DynamicScaling():
            return max(length, rope.scaling.context)
        case LongRopeScaling():
            return int(length > rope.scaling.original_context)
        case _:
            return 0


def frequencies(rope: Rope, length: int) -> Tensor:
    """Angle per position of each pair, float32 [D/2]: theta^(-2j/D), scaled for `length` tokens."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    periods = rope.theta**exponents
    base = 1.0 / periods
    match rope.scaling:
        case None:
            return base
        case LinearScaling(factor):
            return base / factor
        case FrequencyDivisors(divisors):
            return base / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling():
            return _llama3(base, rope.scaling)
        case YarnScaling():
            return _yarn(rope, periods, rope.scaling)
        case DynamicScaling():
            return 1.0 / _stretched(rope.theta, rope.dim, rope.scaling, length) ** exponents
        case LongRopeScaling(short, long, original_context):
            return 1.0 / (torch.tensor(long if length > original_context else short) * periods)


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


def _yarn(rope: Rope, periods: Tensor, scaling: YarnScaling) -> Tensor:
    """Pairs of many turns within the original context keep their frequency, those of few are interpolated.

    Source: Peng et al. 2023, section 3.2, with the ramp over pair numbers of its reference code.
    """

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that makes so many turns within the original context."""
        ratio = scaling.original_context / (turns * 2 * math.pi)
        return rope.dim * math.log(ratio) / (2 * math.log(rope.theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    width = last - first or 0.001  # a ramp of no width is a step
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    kept = 1 - ramp
    # In transformers' order: a last bit here is a visible part of a turn at position 100,000.
    return 1 / (scaling.factor * periods) * (1 - kept) + 1 / periods * kept


def _stretched(theta: float, dim: int, scaling: DynamicScaling, length: int) -> Tensor:
    """The base that spreads `length` tokens over the angles of the context (NTK-aware, bloc97 2023)."""
    times = torch.tensor(max(length, scaling.context)) / scaling.context
    return theta * (scaling.factor * times - (scaling.factor - 1)) ** (dim / (dim - 2))


class Rotations:
    """The tables of all ropes of a model; a layer without one has None for both."""

    def __init__(self, ropes: Iterable[Rope | None], device: torch.device | str) -> None:
        self.frequencies = {
            r: None if r is None or follows_length(r) else frequencies(r, 0).to(device)
            for r in set(ropes)
        }

    def __call__(
        self, positions: Tensor, lengths: Tensor, dtype: torch.dtype
    ) -> dict[Rope | None, Table | None]:
        """Tables of tokens at `positions` [..., T], each in a sequence as long as `lengths` [..., T] say."""
        tables: dict[Rope | None, Table | None] = {}
        for rope, known in self.frequencies.items():
            if rope is None:
                tables[rope] = None
                continue
            frequency = _at_lengths(rope, lengths) if known is None else known
            tables[rope] = table(rope, frequency, positions, dtype)
        return tables


def _at_lengths(rope: Rope, lengths: Tensor) -> Tensor:
    """The frequencies of each token of a rope that follows the length: [..., T, D/2]."""
    different, which = lengths.unique(return_inverse=True)
    known = [frequencies(rope, length) for length in different.tolist()]
    return torch.stack(known).to(lengths.device)[which]


def table(rope: Rope, frequency: Tensor, positions: Tensor, dtype: torch.dtype) -> Table:
    """cos and sin of each new token's angles times the magnitude, both [..., T, D/2] in `dtype`."""
    angles = positions.float()[..., None] * frequency  # [..., T, D/2]
    kept = torch.float32 if rope.in_float32 else dtype
    return (angles.cos() * rope.magnitude).to(kept), (angles.sin() * rope.magnitude).to(kept)


class Rotate(Probe):
    """Each pair of the first numbers of x [B, heads, T, D'] turned by its token's angle, the rest kept.

    Interleaved pairs (2j, 2j+1) come out as halves (j, j + D/2): the order means nothing to q·k.
    """

    def __init__(self, rope: Rope) -> None:
        super().__init__()
        self.dim, self.interleaved = rope.dim, rope.interleaved

    def forward(self, x: Tensor, table: Table) -> Tensor:  # type: ignore[override]
        cos, sin = table
        turned, rest = x[..., : self.dim], x[..., self.dim :]
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
        else:
            first, second = turned.chunk(2, dim=-1)
        halves = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat((*halves, rest), dim=-1).to(x.dtype)


class Keep(nn.Module):
    """What stands in for a rotation in a layer that knows no positions."""

    def forward(self, x: Tensor, table: None) -> Tensor:
        return x


def rotate(rope: Rope | None) -> nn.Module:
    return Keep() if rope is None else Rotate(rope)
