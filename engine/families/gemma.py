"""Gemma: norms of 1 + weight, scaled embeddings, tanh-GELU, tied head.

Source: transformers 5 (`models/gemma`).
"""

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=8192, kv_heads=16, head_dim=256)
    rope = common.read_rope(config, sizes)
    norm = common.gemma_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, **common.attention_bias(config)),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(
            config,
            default="gelu_pytorch_tanh",
            # The first files say gelu and mean its tanh form.
            activations={**common.ACTIVATIONS, "gelu": "gelu_tanh"},
        ),
    )
    return common.model(
        config,
        sizes,
        (layer,) * sizes.n_layers,
        norm,
        tied=True,
        embed_scale=common.gemma_scale(sizes),
    )


FAMILY = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    spec=spec,
    # transformers 5 goes by hidden_act.
    ignored=frozenset({"hidden_activation"}),
    layout=common.layout,
)
