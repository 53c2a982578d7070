"""Rotary position embedding and its scalings, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.spec.checks import positive, require


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023): every frequency divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        require(positive(self.factor), f"the rope factor must be positive, got {self.factor}")


@dataclass(frozen=True)
class DynamicScaling:
    """NTK-aware interpolation whose base grows with the length of the sequence beyond `context`."""

    factor: float
    context: int

    def __post_init__(self) -> None:
        require(positive(self.factor), f"the rope factor must be positive, got {self.factor}")
        require(self.context > 0, "rope scaling dynamic needs a positive context")


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): slow pairs interpolated by `factor`, fast ones kept, a ramp between.

    A pair is fast from `beta_fast` full turns within `original_context` on, slow up to `beta_slow`;
    `truncate` widens the ramp to whole pairs.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool

    def __post_init__(self) -> None:
        require(positive(self.factor), f"the rope factor must be positive, got {self.factor}")
        require(self.original_context > 0, "original_max_position_embeddings must be positive")
        betas = (self.beta_fast, self.beta_slow)
        require(
            all(positive(n) and positive(self.original_context / (n * 2 * math.pi)) for n in betas),
            "rope scaling yarn needs a positive beta_fast and beta_slow of a sane size, "
            f"got {self.beta_fast} and {self.beta_slow}",
        )


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): one divisor per pair, `long` for sequences beyond the original context."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int

    def __post_init__(self) -> None:
        divisors = (*self.short, *self.long)
        require(all(map(positive, divisors)), "short_factor and long_factor must be positive")
        require(self.original_context > 0, "original_max_position_embeddings must be positive")


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rule: long wavelengths divided by `factor`, short ones kept, a ramp between.

    Wavelengths are compared with `original_context / {low,high}_freq_factor`, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        require(positive(self.factor), f"the rope factor must be positive, got {self.factor}")
        require(
            0 < self.low_freq_factor < self.high_freq_factor < math.inf,
            "rope scaling llama3 needs 0 < low_freq_factor < high_freq_factor, "
            f"got {self.low_freq_factor} and {self.high_freq_factor}",
        )
        require(self.original_context > 0, "original_max_position_embeddings must be positive")


@dataclass(frozen=True)
class FrequencyDivisors:
    """One divisor per frequency, as GGUF files ship a scaling (tensor `rope_freqs.weight`)."""

    divisors: tuple[float, ...]

    def __post_init__(self) -> None:
        require(all(map(positive, self.divisors)), "rope_freqs.weight must be positive")


RopeScaling = (
    LinearScaling
    | DynamicScaling
    | YarnScaling
    | LongRopeScaling
    | Llama3Scaling
    | FrequencyDivisors
)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` numbers of a head; the rest of it passes through.

    A pair is (i, i + dim/2), or (2i, 2i + 1) where the weights are `interleaved`. `magnitude` is what
    cos and sin are multiplied by (YaRN's and LongRoPE's attention factor). `in_float32`: the rotation
    itself is computed in float32 and rounded last.
    """

    dim: int
    theta: float
    scaling: RopeScaling | None = None
    magnitude: float = 1.0
    interleaved: bool = False
    in_float32: bool = False

    def __post_init__(self) -> None:
        require(self.dim > 0 and self.dim % 2 == 0, f"rope needs an even head_dim, got {self.dim}")
        require(positive(self.theta), f"rope_theta must be positive, got {self.theta}")
        require(positive(self.magnitude), f"rope's magnitude must be positive: {self.magnitude}")
        match self.scaling:
            case DynamicScaling():  # the base grows by the power dim / (dim - 2)
                require(self.dim > 2, f"rope scaling dynamic needs more than {self.dim} numbers")
            case YarnScaling():  # which divides by the logarithm of the base
                require(self.theta != 1, "rope scaling yarn needs a rope_theta other than 1")
            case FrequencyDivisors(divisors):
                self._one_per_pair("rope_freqs.weight", divisors)
            case LongRopeScaling(short=short, long=long):
                self._one_per_pair("short_factor", short)
                self._one_per_pair("long_factor", long)

    def _one_per_pair(self, name: str, divisors: tuple[float, ...]) -> None:
        n = len(divisors)
        require(n == self.dim // 2, f"{name} has {n} entries, not {self.dim // 2}")
