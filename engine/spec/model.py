"""A decoder's operations as values: norms, attention, feed-forward, block, model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from engine.spec.checks import positive, require
from engine.spec.position import DynamicScaling, LongRopeScaling, Rope

# -- norms and factors -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RMSNorm:
    """Root-mean-square norm (Zhang and Sennrich 2019).

    `product_in_float32`: the product with the weight comes before the cast back to the run's dtype,
    not after it; the two differ in bfloat16. `plus_one`: the factor is 1 + weight, in float32.
    """

    eps: float
    product_in_float32: bool = False
    plus_one: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.eps < math.inf, f"the norm's eps must be 0 or more, got {self.eps}")
        require(self.product_in_float32 or not self.plus_one, "1 + weight is formed in float32")


@dataclass(frozen=True)
class LayerNorm:
    """Layer norm with weight and bias (Ba et al. 2016)."""

    eps: float

    def __post_init__(self) -> None:
        require(0 <= self.eps < math.inf, f"the norm's eps must be 0 or more, got {self.eps}")


Norm = RMSNorm | LayerNorm


@dataclass(frozen=True)
class Scale:
    """A constant factor; `rounded`: to the weights' dtype before the product, not as it stands."""

    factor: float
    rounded: bool = False

    def __post_init__(self) -> None:
        require(math.isfinite(self.factor), f"a factor must be finite, got {self.factor}")


# -- attention -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QKNorm:
    """A norm of queries and keys before the rotation, over each `head` or over `all` heads at once."""

    norm: RMSNorm
    over: Literal["head", "all"]


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Causal attention in which `n_heads / n_kv_heads` query heads share a key/value head.

    A score is q·k times `scale`, bounded by `softcap * tanh(score / softcap)`; with a `window` a token
    sees that many keys, its own included. `sinks`: each head has one learned logit that takes part in
    the softmax and has no value.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: QKNorm | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    def __post_init__(self) -> None:
        require(
            min(self.n_heads, self.n_kv_heads, self.head_dim) > 0,
            "attention needs positive n_heads, n_kv_heads and head_dim",
        )
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"{self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly",
        )
        _check_scores(self.scale, self.window, self.softcap)
        if self.rope is not None:
            require(
                self.rope.dim <= self.head_dim,
                f"rope cannot turn {self.rope.dim} of a head's {self.head_dim} numbers",
            )

    @property
    def cached(self) -> Mapping[str, tuple[int, int]]:
        """What a cache keeps of each token, by name: heads and numbers per head."""
        return dict.fromkeys(("k", "v"), (self.n_kv_heads, self.head_dim))


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024): keys and values are read from a small latent.

    A head's query and key have `nope_dim` numbers without position and `rope_dim` with it, of which the
    key's are shared by all heads; its value has `v_dim`. Queries come from a latent, too, where
    `q_rank` is given. `latent_norm` is the norm of both latents.
    """

    n_heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    scale: float
    rope: Rope
    latent_norm: RMSNorm
    bias: bool = False
    window: ClassVar[None] = None
    softcap: ClassVar[None] = None
    sinks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        sizes = (self.n_heads, self.kv_rank, self.nope_dim, self.rope_dim, self.v_dim)
        require(min(sizes) > 0, f"latent attention needs positive sizes, got {sizes}")
        require(self.q_rank is None or self.q_rank > 0, "q_lora_rank must be positive")
        require(self.rope.dim == self.rope_dim, f"rope turns {self.rope.dim}, not {self.rope_dim}")
        _check_scores(self.scale, None, None)

    @property
    def cached(self) -> Mapping[str, tuple[int, int]]:
        """What a cache keeps of each token, by name: heads and numbers per head."""
        return {"latent": (1, self.kv_rank), "k_rope": (1, self.rope_dim)}


def _check_scores(scale: float, window: int | None, softcap: float | None) -> None:
    require(math.isfinite(scale), f"the softmax scale must be finite, got {scale}")
    require(window is None or window > 0, f"the window must be positive, got {window}")
    require(softcap is None or positive(softcap), f"a softcap must be positive, got {softcap}")


Attention = GroupedQueryAttention | LatentAttention


# -- feed-forward ----------------------------------------------------------------------------------

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class DenseMLP:
    """Feed-forward: down(activation(gate(x)) * up(x)) (Shazeer 2020), or down(activation(up(x)))."""

    ffn_dim: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        require(self.ffn_dim > 0, f"ffn_dim must be positive, got {self.ffn_dim}")


_LARGEST_FLOAT32 = 2.0**128  # torch clamps at no number from here on


@dataclass(frozen=True)
class ClampedSwiGLU:
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most `limit`, up within ±`limit`."""

    alpha: float
    limit: float

    def __post_init__(self) -> None:
        require(math.isfinite(self.alpha), f"swiglu_alpha must be finite, got {self.alpha}")
        require(
            0 < self.limit < _LARGEST_FLOAT32,
            f"swiglu_limit must be positive and a float32, got {self.limit}",
        )


@dataclass(frozen=True)
class Groups:
    """Experts in `n` equal groups, of which a token's experts are taken from the best `kept`.

    A group is as good as the sum of its two best experts.
    """

    n: int
    kept: int


@dataclass(frozen=True)
class Router:
    """How experts are chosen and weighed.

    Scores are the softmax or sigmoid of the router's logits; the highest are chosen, after the learned
    `correction` (if any) is added and `groups` are left out. What is chosen is weighed by its score
    without correction, divided by the sum of those chosen where `normalise`, times `scale`.
    """

    score: Literal["softmax", "sigmoid"]
    normalise: bool
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: Groups | None = None


@dataclass(frozen=True)
class MoE:
    """Mixture of experts: each token goes through `top_k` of `n_experts` gated feed-forwards.

    `shared` is one that every token goes through besides.
    """

    n_experts: int
    top_k: int
    ffn_dim: int
    router: Router
    activation: Activation | ClampedSwiGLU = "silu"
    bias: bool = False
    shared: DenseMLP | None = None

    def __post_init__(self) -> None:
        require(
            0 < self.top_k <= self.n_experts,
            f"{self.top_k} of {self.n_experts} experts cannot be chosen",
        )
        require(self.ffn_dim > 0, f"the experts' ffn_dim must be positive, got {self.ffn_dim}")
        if groups := self.router.groups:
            require(
                0 < groups.kept <= groups.n and self.n_experts % groups.n == 0,
                f"{self.n_experts} experts cannot lie in {groups.n} groups of which "
                f"{groups.kept} are kept",
            )
            size = self.n_experts // groups.n
            require(
                size >= 2 and groups.kept * size >= self.top_k,
                f"{groups.kept} groups of {size} experts cannot offer {self.top_k} of them, "
                "and a group needs two at least",
            )


MLP = DenseMLP | MoE


# -- the whole -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerSpec:
    """One block: attention and feed-forward, a norm before and after each, None being the identity."""

    pre_attn_norm: Norm | None
    attn: Attention
    pre_mlp_norm: Norm | None
    mlp: MLP
    post_attn_norm: Norm | Scale | None = None
    post_mlp_norm: Norm | Scale | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A whole decoder. `context` is the largest number of positions it was made for.

    `learned_positions`: so many learned vectors are added to the embeddings, one per position.
    `embed_scale` multiplies the embeddings, `logits_scale` the logits, which `logit_softcap` bounds
    after that. `tied_head` is what the config asks for; the checkpoint has the last word (see
    `engine.families.family.Tie`).
    """

    vocab_size: int
    dim: int
    context: int
    layers: tuple[LayerSpec, ...]
    final_norm: Norm
    tied_head: bool
    learned_positions: int | None = None
    embed_scale: Scale | None = None
    logits_scale: Scale | None = None
    logit_softcap: float | None = None

    def __post_init__(self) -> None:
        require(self.vocab_size > 0, f"vocab_size must be positive, got {self.vocab_size}")
        require(self.dim > 0, f"dim must be positive, got {self.dim}")
        require(self.context > 0, f"the context must be positive, got {self.context}")
        require(len(self.layers) > 0, "a model needs at least one layer")
        learned = self.learned_positions
        require(
            learned is None or learned >= self.context,
            f"{learned} learned positions are fewer than the context of {self.context}",
        )
        cap = self.logit_softcap
        require(cap is None or positive(cap), f"a softcap must be positive, got {cap}")

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def rope_borders(self) -> frozenset[int]:
        """Lengths behind which frequencies change: turning points, and where a base begins to grow."""
        ropes = (layer.attn.rope for layer in self.layers)
        scalings = (rope.scaling for rope in ropes if rope is not None)
        growing = (s.context for s in scalings if isinstance(s, DynamicScaling))
        return self.turning_points | frozenset(growing)

    @property
    def turning_points(self) -> frozenset[int]:
        """Lengths after which other frequencies hold for the whole sequence, so that its keys are stale."""
        ropes = (layer.attn.rope for layer in self.layers)
        scalings = (rope.scaling for rope in ropes if rope is not None)
        return frozenset(s.original_context for s in scalings if isinstance(s, LongRopeScaling))
