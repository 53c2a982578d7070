"""A model's shape as frozen values: everything the decoder needs to build itself, checked once here.

Family files translate a config.json into these types; nothing behind them reads a dictionary.
Names are Llama-3's: dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import ModelFileError


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelFileError(message)


def _positive(number: float) -> bool:
    return 0 < number < math.inf  # False for NaN, too


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023): every frequency divided by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        _require(_positive(self.factor), f"the rope factor must be positive, got {self.factor}")


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
        _require(_positive(self.factor), f"the rope factor must be positive, got {self.factor}")
        _require(
            0 < self.low_freq_factor < self.high_freq_factor < math.inf,
            "rope scaling llama3 needs 0 < low_freq_factor < high_freq_factor, "
            f"got {self.low_freq_factor} and {self.high_freq_factor}",
        )
        _require(self.original_context > 0, "original_max_position_embeddings must be positive")


@dataclass(frozen=True)
class FrequencyDivisors:
    """One divisor per frequency, as GGUF files ship a scaling (tensor `rope_freqs.weight`)."""

    divisors: tuple[float, ...]

    def __post_init__(self) -> None:
        _require(all(map(_positive, self.divisors)), "rope_freqs.weight must be positive")


RopeScaling = LinearScaling | Llama3Scaling | FrequencyDivisors


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of a whole head of `dim` numbers, half-split pairing (i, i + dim/2)."""

    dim: int
    theta: float
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        _require(self.dim > 0 and self.dim % 2 == 0, f"rope needs an even head_dim, got {self.dim}")
        _require(_positive(self.theta), f"rope_theta must be positive, got {self.theta}")
        if isinstance(self.scaling, FrequencyDivisors):
            n = len(self.scaling.divisors)
            _require(n == self.dim // 2, f"rope_freqs.weight has {n} entries, not {self.dim // 2}")


@dataclass(frozen=True)
class RMSNorm:
    """Root-mean-square norm; the product with the weight comes after the cast back (Llama's order)."""

    eps: float

    def __post_init__(self) -> None:
        _require(0 <= self.eps < math.inf, f"the norm's eps must be 0 or more, got {self.eps}")


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Causal attention in which `n_heads / n_kv_heads` query heads share a key/value head."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: Rope
    qkv_bias: bool
    out_bias: bool

    def __post_init__(self) -> None:
        _require(
            min(self.n_heads, self.n_kv_heads, self.head_dim) > 0,
            "attention needs positive n_heads, n_kv_heads and head_dim",
        )
        _require(
            self.n_heads % self.n_kv_heads == 0,
            f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly",
        )

    @property
    def scale(self) -> float:
        """What a score q·k is multiplied by: 1 / sqrt(head_dim) (Vaswani et al. 2017)."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True)
class DenseMLP:
    """Gated feed-forward: down(silu(gate(x)) * up(x)) (SwiGLU, Shazeer 2020)."""

    ffn_dim: int
    bias: bool

    def __post_init__(self) -> None:
        _require(self.ffn_dim > 0, f"ffn_dim must be positive, got {self.ffn_dim}")


@dataclass(frozen=True)
class LayerSpec:
    """One block: attention and feed-forward, the norm before each."""

    pre_attn_norm: RMSNorm
    attn: GroupedQueryAttention
    pre_mlp_norm: RMSNorm
    mlp: DenseMLP


@dataclass(frozen=True)
class ModelSpec:
    """A whole decoder. `context` is the largest number of positions it was made for.

    `tied_head` is what the config asks for; the checkpoint has the last word (see
    `engine.families.family.Tie`).
    """

    vocab_size: int
    dim: int
    context: int
    layers: tuple[LayerSpec, ...]
    final_norm: RMSNorm
    tied_head: bool

    def __post_init__(self) -> None:
        _require(self.vocab_size > 0, f"vocab_size must be positive, got {self.vocab_size}")
        _require(self.dim > 0, f"dim must be positive, got {self.dim}")
        _require(self.context > 0, f"the context must be positive, got {self.context}")
        _require(len(self.layers) > 0, "a model needs at least one layer")

    @property
    def n_layers(self) -> int:
        return len(self.layers)
