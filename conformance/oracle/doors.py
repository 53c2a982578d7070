"""Where the modules of transformers show the probes: one table of doors for each layout of modules.

A door is the input or the output of a module below a layer. What no module's input or output shows is
seen otherwise: the inside of attention in `attention`, the choice of experts in `routing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from torch import Tensor, nn

from engine.errors import LockstepError


@dataclass(frozen=True)
class Sizes:
    """By what a module's tensor is divided into the axes of a probe."""

    batch: int
    heads: int
    kv_heads: int
    kv_rank: int  # of a latent; 0 where there is none


View = Callable[[Tensor, Sizes], Tensor]


def whole(value: Tensor, sizes: Sizes) -> Tensor:
    return value


def _split(value: Tensor, heads: int) -> Tensor:
    """[B, T, heads * D] as [B, heads, T, D]."""
    split: Tensor = value.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _queries(value: Tensor, sizes: Sizes) -> Tensor:
    return _split(value, sizes.heads)


def _keys(value: Tensor, sizes: Sizes) -> Tensor:
    return _split(value, sizes.kv_heads)


def _heads_second(value: Tensor, sizes: Sizes) -> Tensor:
    """[B, T, heads, D] as [B, heads, T, D]."""
    return value.transpose(1, 2)


def _fused(part: int) -> View:
    """The queries (0), keys (1) or values (2) of one projection for all three."""

    def view(value: Tensor, sizes: Sizes) -> Tensor:
        counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
        parts: tuple[Tensor, ...] = _split(value, sum(counts)).split(counts, dim=1)
        return parts[part]

    return view


def _half(part: int) -> View:
    return lambda value, sizes: value.chunk(2, dim=-1)[part]


def by_token(value: Tensor, batch: int) -> Tensor:
    """[B * T, n] as [B, T, n]."""
    rows: Tensor = value.unflatten(0, (batch, -1))
    return rows


def _rows(value: Tensor, sizes: Sizes) -> Tensor:
    return by_token(value, sizes.batch)


def _latent(value: Tensor, sizes: Sizes) -> Tensor:
    return value[..., : sizes.kv_rank]


def _shared_key(value: Tensor, sizes: Sizes) -> Tensor:
    """What follows the latent, as [B, 1, T, rope]."""
    return value[:, None, :, sizes.kv_rank :]


def _expanded(value: Tensor, sizes: Sizes) -> Tensor:
    """[B, 1, S, heads * D] as [B, heads, S, D]."""
    return _split(value[:, 0], sizes.heads)


@dataclass(frozen=True)
class Door:
    """The `side` of the module at `path` below a layer is the value of `probe`, seen as `view` says."""

    path: str
    side: Literal["in", "out"]
    probe: str
    view: View = whole

    def module(self, layer: nn.Module) -> nn.Module | None:
        """The door's module, None where the layer's config leaves it out."""
        found: nn.Module | None = attrgetter(self.path)(layer) if self.path else layer
        return found


@dataclass(frozen=True)
class Layout:
    """The doors of a layer: norms and attention, then those of a dense or a sparse feed-forward."""

    block: tuple[Door, ...]
    dense: tuple[Door, ...]
    sparse: tuple[Door, ...] = ()
    router: str = "mlp.gate"
    rope: bool = True

    def doors(self, layer: nn.Module) -> tuple[Door, ...]:
        last = Door("", "out", "out")
        return (*self.block, *(self.sparse if is_sparse(layer) else self.dense), last)


def is_sparse(layer: Any) -> bool:
    """Whether the layer's feed-forward is a mixture of experts."""
    return hasattr(layer.mlp, "experts")


_PRE_NORMS = (
    Door("input_layernorm", "out", "pre_attn_norm"),
    Door("post_attention_layernorm", "in", "after_attn"),
    Door("post_attention_layernorm", "out", "pre_mlp_norm"),
)
_POST_NORMS = (
    Door("post_attention_layernorm", "out", "post_attn_norm"),
    Door("mlp", "in", "after_attn"),
    Door("post_feedforward_layernorm", "out", "post_mlp_norm"),
)
_NORMS_ON_BOTH_SIDES = (
    Door("input_layernorm", "out", "pre_attn_norm"),
    Door("post_attention_layernorm", "out", "post_attn_norm"),
    Door("pre_feedforward_layernorm", "in", "after_attn"),
    Door("pre_feedforward_layernorm", "out", "pre_mlp_norm"),
    Door("post_feedforward_layernorm", "out", "post_mlp_norm"),
)

_OUT = Door("self_attn.o_proj", "out", "attn.out")
_ATTENTION = (
    Door("self_attn.q_proj", "out", "attn.q", _queries),
    Door("self_attn.k_proj", "out", "attn.k", _keys),
    Door("self_attn.v_proj", "out", "attn.v", _keys),
    _OUT,
)
_FUSED_ATTENTION = (
    Door("self_attn.qkv_proj", "out", "attn.q", _fused(0)),
    Door("self_attn.qkv_proj", "out", "attn.k", _fused(1)),
    Door("self_attn.qkv_proj", "out", "attn.v", _fused(2)),
    _OUT,
)
_LATENT_ATTENTION = (
    Door("self_attn.q_a_proj", "out", "attn.q_down"),
    Door("self_attn.q_a_layernorm", "out", "attn.q_norm"),
    Door("self_attn.q_b_proj", "out", "attn.q", _queries),
    Door("self_attn.q_proj", "out", "attn.q", _queries),
    Door("self_attn.kv_a_proj_with_mqa", "out", "attn.kv_down", _latent),
    Door("self_attn.kv_a_proj_with_mqa", "out", "attn.k", _shared_key),
    Door("self_attn.kv_a_layernorm", "out", "attn.kv_norm"),
    Door("self_attn.kv_b_proj", "out", "attn.kv_up", _expanded),
    _OUT,
)


def _qk_norms(queries: View, keys: View) -> tuple[Door, ...]:
    return (
        Door("self_attn.q_norm", "out", "attn.q_norm", queries),
        Door("self_attn.k_norm", "out", "attn.k_norm", keys),
    )


def _gated(path: str, probe: str) -> tuple[Door, ...]:
    return (
        Door(f"{path}.gate_proj", "out", f"{probe}.gate"),
        Door(f"{path}.up_proj", "out", f"{probe}.up"),
        Door(f"{path}.down_proj", "in", f"{probe}.act"),
        Door(f"{path}.down_proj", "out", f"{probe}.down"),
    )


_DENSE = _gated("mlp", "mlp")
_FUSED_DENSE = (
    Door("mlp.gate_up_proj", "out", "mlp.gate", _half(0)),
    Door("mlp.gate_up_proj", "out", "mlp.up", _half(1)),
    Door("mlp.down_proj", "in", "mlp.act"),
    Door("mlp.down_proj", "out", "mlp.down"),
)
_SPARSE = (
    Door("mlp.experts", "out", "mlp.experts", _rows),
    Door("mlp", "out", "mlp.out"),
)
_SPARSE_AND_SHARED = (*_gated("mlp.shared_experts", "mlp.shared"), *_SPARSE)

_PLAIN = Layout((*_PRE_NORMS, *_ATTENTION), _DENSE, _SPARSE)
_NORMED_HEADS = Layout(
    (*_PRE_NORMS, *_ATTENTION, *_qk_norms(_heads_second, _heads_second)), _DENSE, _SPARSE
)

#: By a config's `model_type`.
LAYOUTS: Mapping[str, Layout] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "gemma", "granite", "smollm3"), _PLAIN),
    "mixtral": _PLAIN,
    "gpt_oss": Layout(_PLAIN.block, (), _SPARSE, router="mlp.router"),
    "qwen3": _NORMED_HEADS,
    "qwen3_moe": _NORMED_HEADS,
    "gemma2": Layout((*_NORMS_ON_BOTH_SIDES, *_ATTENTION), _DENSE),
    "gemma3_text": Layout((*_NORMS_ON_BOTH_SIDES, *_ATTENTION, *_qk_norms(whole, whole)), _DENSE),
    "olmo2": Layout((*_POST_NORMS, *_ATTENTION, *_qk_norms(_queries, _keys)), _DENSE),
    "phi3": Layout((*_PRE_NORMS, *_FUSED_ATTENTION), _FUSED_DENSE),
    "deepseek_v3": Layout((*_PRE_NORMS, *_LATENT_ATTENTION), _DENSE, _SPARSE_AND_SHARED),
    "gpt2": Layout(
        (
            Door("ln_1", "out", "pre_attn_norm"),
            Door("attn.c_attn", "out", "attn.q", _fused(0)),
            Door("attn.c_attn", "out", "attn.k", _fused(1)),
            Door("attn.c_attn", "out", "attn.v", _fused(2)),
            Door("attn.c_proj", "out", "attn.out"),
            Door("ln_2", "in", "after_attn"),
            Door("ln_2", "out", "pre_mlp_norm"),
        ),
        (
            Door("mlp.c_fc", "out", "mlp.up"),
            Door("mlp.act", "out", "mlp.act"),
            Door("mlp.c_proj", "out", "mlp.down"),
        ),
        rope=False,
    ),
}


def layout_of(config: Any) -> Layout:
    """The layout of a model's modules; LockstepError for an architecture without a table."""
    if config.model_type not in LAYOUTS:
        raise LockstepError(
            f"the reference shows no operations of a {config.model_type}; "
            f"it has doors for {', '.join(sorted(LAYOUTS))}"
        )
    return LAYOUTS[config.model_type]


def decoder_of(model: Any) -> tuple[list[Any], nn.Module]:
    """A model's layers, and its final norm."""
    base = model.base_model
    if model.config.model_type == "gpt2":
        return list(base.h), base.ln_f
    return list(base.layers), base.norm
