"""Gemma 2: Gemma with norms on both sides, soft caps, and a window in every other layer.

Source: transformers 5 (`models/gemma2`).
"""

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=8192, kv_heads=4, head_dim=256)
    rope = common.read_rope(config, sizes)
    norm = common.gemma_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(
            sizes,
            rope,
            **common.attention_bias(config),
            scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
            softcap=config.optional_number("attn_logit_softcapping", 50.0),
        ),
        post_attn_norm=norm,
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config, key="hidden_activation", default="gelu_pytorch_tanh"),
        post_mlp_norm=norm,
    )
    window = config.optional_integer("sliding_window", 4096)
    windows = config.windows(sizes.n_layers, window, lambda i: i % 2 == 0)
    return common.model(
        config,
        sizes,
        common.with_windows(layer, windows),
        norm,
        tied=True,
        embed_scale=common.gemma_scale(sizes),
        logit_softcap=config.optional_number("final_logit_softcapping", 30.0),
    )


FAMILY = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    spec=spec,
    # transformers goes by hidden_activation and sliding_window.
    ignored=frozenset({"hidden_act", "sliding_window_size"}),
    layout=common.layout,
)
