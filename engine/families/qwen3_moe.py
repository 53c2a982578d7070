"""Qwen3-MoE: Qwen3's attention, and experts in most layers.

Source: transformers 5 (`models/qwen3_moe`).
"""

from dataclasses import replace

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family, Layout
from engine.spec import LayerSpec, ModelSpec, MoE, QKNorm, Router


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=32768, kv_heads=4)
    rope = common.read_rope(config, sizes)
    norm = common.rms_norm(config)
    dense = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(
            sizes,
            rope,
            **common.attention_bias(config),
            qk_norm=QKNorm(norm, over="head"),
            window=common.qwen_window(config),
        ),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    moe = MoE(
        n_experts=common.n_experts(config, "num_experts", "num_local_experts", 128),
        top_k=config.integer("num_experts_per_tok", 8),
        ffn_dim=config.integer("moe_intermediate_size", 768),
        router=Router(score="softmax", normalise=config.flag("norm_topk_prob", False)),
        activation=dense.mlp.activation,
    )
    step = config.integer("decoder_sparse_step", 1)
    without = config.integers("mlp_only_layers") or ()
    layers = tuple(
        dense if i in without or (i + 1) % step else replace(dense, mlp=moe)
        for i in range(sizes.n_layers)
    )
    return common.model(config, sizes, layers, norm)


def _layout(spec: ModelSpec) -> Layout:
    return common.layout(spec, {**common.ROUTER, **common.expert_verbs(spec, common.EXPERT)})


FAMILY = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    spec=spec,
    # The window has no first layer here: transformers gives it to all.
    ignored=frozenset({"max_window_layers"}),
    layout=_layout,
)
