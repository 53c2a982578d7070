"""What most families share: how sizes and blocks are read, and Hugging Face's usual tensor names.

A family file says how it differs. Defaults given to these functions are those of the family's config
class in transformers; the sizes that every file states have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.families import rope
from engine.families.config import LARGEST_CONTEXT, Config
from engine.families.family import Either, Layout, Rename, Split, Stack, Tie, Verb
from engine.spec import (
    Activation,
    DenseMLP,
    DynamicScaling,
    GroupedQueryAttention,
    LayerSpec,
    ModelSpec,
    MoE,
    Norm,
    RMSNorm,
    Rope,
    Scale,
)

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


# -- config.json -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The sizes that a family's parts have in common."""

    dim: int
    context: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int


def read_sizes(
    config: Config,
    context: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    dim: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
) -> Sizes:
    """`kv_heads` is what an absent key stands for; null stands for as many as query heads."""
    dim = config.integer("hidden_size", dim)
    n_heads = config.integer("num_attention_heads", n_heads)
    return Sizes(
        dim=dim,
        context=config.integer("max_position_embeddings", context),
        n_layers=config.integer("num_hidden_layers", n_layers),
        n_heads=n_heads,
        n_kv_heads=config.optional_integer("num_key_value_heads", kv_heads) or n_heads,
        head_dim=config.integer("head_dim", head_dim or dim // n_heads),
    )


def read_rope(
    config: Config, sizes: Sizes, theta: float = 10000.0, in_float32: bool = False
) -> Rope:
    """The rope of whole heads; `theta` is the default."""
    table = rope.rope_table(config, theta)
    return rope.rope_of(table, sizes.head_dim, sizes.context, in_float32=in_float32)


def attention(sizes: Sizes, rope: Rope | None, **more: Any) -> GroupedQueryAttention:
    """Attention with the usual scale, head_dim ** -0.5."""
    return GroupedQueryAttention(
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads,
        head_dim=sizes.head_dim,
        rope=rope,
        **{"scale": sizes.head_dim**-0.5, **more},
    )


def attention_bias(config: Config, default: bool = False) -> dict[str, bool]:
    """`attention_bias`, which stands for all four projections, as `attention` takes it."""
    bias = config.flag("attention_bias", default)
    return {"qkv_bias": bias, "out_bias": bias}


def with_windows(layer: LayerSpec, windows: tuple[int | None, ...]) -> tuple[LayerSpec, ...]:
    """The layer once for each window, and otherwise the same."""
    attn = layer.attn
    assert isinstance(attn, GroupedQueryAttention)
    return tuple(replace(layer, attn=replace(attn, window=window)) for window in windows)


def qwen_window(config: Config) -> int | None:
    """`sliding_window` in the families where `use_sliding_window` switches it on."""
    window = config.optional_integer("sliding_window", 4096)
    return window if config.flag("use_sliding_window", False) else None


def qwen_windows(config: Config, n_layers: int) -> tuple[int | None, ...]:
    """That window in the layers from `max_window_layers` on, or where `layer_types` says so."""
    window = qwen_window(config)
    first = config.integer("max_window_layers", 28, least=0)
    return config.windows(n_layers, window, lambda i: window is not None and i >= first)


def rms_norm(config: Config, eps: float = 1e-6, **form: bool) -> RMSNorm:
    """`eps` is the default; `form` goes to `RMSNorm`."""
    return RMSNorm(eps=config.number("rms_norm_eps", eps), **form)


def gemma_norm(config: Config) -> RMSNorm:
    """The factor is 1 + weight, and the product is taken in float32."""
    return rms_norm(config, product_in_float32=True, plus_one=True)


def gemma_scale(sizes: Sizes) -> Scale:
    """Embeddings times sqrt(dim), rounded to their own dtype first."""
    return Scale(sizes.dim**0.5, rounded=True)


def n_experts(config: Config, key: str, alias: str, default: int) -> int:
    """Under either of two names; transformers goes by `alias` where a file has both."""
    return config.integer(alias, config.integer(key, default))


def gated_mlp(
    config: Config,
    bias: bool = False,
    ffn_dim: int | None = None,
    key: str = "hidden_act",
    default: str = "silu",
    activations: Mapping[str, Activation] = ACTIVATIONS,
) -> DenseMLP:
    """The gated feed-forward of `intermediate_size`, its activation named by `key`."""
    return DenseMLP(
        ffn_dim=config.integer("intermediate_size", ffn_dim),
        activation=config.one_of(key, activations, default),
        bias=bias,
    )


def model(
    config: Config,
    sizes: Sizes,
    layers: tuple[LayerSpec, ...],
    final_norm: Norm,
    tied: bool = False,
    vocab_size: int | None = None,
    **more: Any,
) -> ModelSpec:
    """The whole; `tied` is the default of `tie_word_embeddings`."""
    return ModelSpec(
        vocab_size=config.integer("vocab_size", vocab_size),
        dim=sizes.dim,
        context=_positions(sizes, layers),
        layers=layers,
        final_norm=final_norm,
        tied_head=config.flag("tie_word_embeddings", tied),
        **more,
    )


def _positions(sizes: Sizes, layers: tuple[LayerSpec, ...]) -> int:
    """The config's positions, of which a base that grows with the length makes `factor` times as many."""
    ropes = (layer.attn.rope for layer in layers)
    scalings = (turns.scaling for turns in ropes if turns is not None)
    factors = (s.factor for s in scalings if isinstance(s, DynamicScaling))
    return int(min(sizes.context * max([1.0, *factors]), LARGEST_CONTEXT))


# -- tensors ---------------------------------------------------------------------------------------

#: A decoder layer's name in most checkpoints.
BLOCK = "model.layers.{i}."
# Frequencies that transformers before 4.30 saved; they follow from the config.
_FREQUENCIES = "*.rotary_emb.inv_freq"
# Where a text model's own checkpoint and a multimodal one keep the decoder (transformers has written
# the last two in turns), and what else the latter holds.
_TEXT_PART = ("model.", "", "model.language_model.", "language_model.model.", "language_model.")
_OTHER_PARTS = ("*vision_tower.*", "*multi_modal_projector.*")
_LINEARS = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "pre_attn_norm": "input_layernorm",
}
# The same name means the norm before the feed-forward, or the one after the attention.
_NORMS = {"pre_mlp_norm": "post_attention_layernorm"}
_NORMS_AFTER = {
    "post_attn_norm": "post_attention_layernorm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


def layout(
    spec: ModelSpec,
    verbs: Mapping[str, Verb] | None = None,
    ignored: tuple[str, ...] = (),
    multimodal: bool = False,
) -> Layout:
    """Hugging Face's names for a spec; `verbs` are what the family has of its own, or otherwise.

    `multimodal`: the decoder may be a part of a larger checkpoint, whose other parts are left aside.
    """
    base = "" if multimodal else "model."
    norms = _NORMS_AFTER if isinstance(spec.layers[0].post_attn_norm, RMSNorm) else _NORMS
    named: dict[str, Verb] = {
        "embed.weight": Rename(base + "embed_tokens.weight"),
        "final_norm.weight": Rename(base + "norm.weight"),
        "logits.weight": Rename("lm_head.weight"),
    }
    for ours, theirs in {**_LINEARS, **norms}.items():
        for part in ("weight", "bias"):
            named[f"layers.{{i}}.{ours}.{part}"] = Rename(f"{base}layers.{{i}}.{theirs}.{part}")
    if spec.tied_head:
        named["embed.weight"] = Tie(base + "embed_tokens.weight", "logits.weight")
        named["logits.weight"] = Tie("lm_head.weight", "embed.weight")
    return Layout(
        {**named, **(verbs or {})},
        ignored=(_FREQUENCIES, *ignored, *(_OTHER_PARTS if multimodal else ())),
        prefixes=_TEXT_PART if multimodal else ("",),
    )


def moe_of(spec: ModelSpec) -> MoE | None:
    """The mixture of experts of the layers that have one; they are all alike."""
    return next((layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoE)), None)


def split(whole: Verb, sizes: Mapping[str, int], axis: int = 0) -> dict[str, Verb]:
    """Several parameters of each layer that lie in one tensor, one after the other along `axis`."""
    verbs: dict[str, Verb] = {}
    start = 0
    for name, size in sizes.items():
        verbs[f"layers.{{i}}.{name}"] = Split(whole, start, start + size, axis)
        start += size
    return verbs


def expert_verbs(spec: ModelSpec, one: Mapping[str, str]) -> dict[str, Verb]:
    """Experts all in one tensor (transformers 5), or one by one by the names `one`."""
    moe = moe_of(spec)
    if moe is None:
        return {}
    together = {
        **split(
            Rename(BLOCK + "mlp.experts.gate_up_proj"),
            {"mlp.experts.gate": moe.ffn_dim, "mlp.experts.up": moe.ffn_dim},
            axis=1,
        ),
        "layers.{i}.mlp.experts.down": Rename(BLOCK + "mlp.experts.down_proj"),
    }
    return {
        name: Either((verb, Stack(Rename(BLOCK + one[name.rpartition(".")[2]]), moe.n_experts)))
        for name, verb in together.items()
    }


#: One expert's projections as Qwen and DeepSeek name them.
EXPERT = {part: f"mlp.experts.{{e}}.{part}_proj.weight" for part in ("gate", "up", "down")}
ROUTER: Mapping[str, Verb] = {
    "layers.{i}.mlp.router_logits.weight": Rename(BLOCK + "mlp.gate.weight"),
}
