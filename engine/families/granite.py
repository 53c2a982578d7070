"""Granite 3: llama's block with four factors, on embeddings, residuals, scores and logits.

Source: transformers 5 (`models/granite`).
"""

from engine.errors import ModelFileError
from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec, Scale


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=2048)
    rope = common.read_rope(config, sizes)
    norm = common.rms_norm(config)
    residual = Scale(config.number("residual_multiplier", 1.0))
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(
            sizes,
            rope,
            **common.attention_bias(config),
            scale=config.number("attention_multiplier", 1.0),
        ),
        post_attn_norm=residual,
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config, bias=config.flag("mlp_bias", False)),
        post_mlp_norm=residual,
    )
    divisor = config.number("logits_scaling", 1.0)
    if divisor == 0:
        raise ModelFileError("config.json: logits_scaling divides the logits and must not be 0")
    return common.model(
        config,
        sizes,
        (layer,) * sizes.n_layers,
        norm,
        embed_scale=Scale(config.number("embedding_multiplier", 1.0)),
        logits_scale=Scale(1 / divisor),
    )


FAMILY = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    spec=spec,
    ignored=frozenset(),
    layout=common.layout,
)
