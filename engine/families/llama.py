"""Llama 1 to 3.3, and every checkpoint that calls itself LlamaForCausalLM (SmolLM2 among them).

Source: the definition in transformers 5 (`models/llama`) and Touvron et al. 2023.
"""

from engine.families import common, gguf
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=2048)
    rope = common.read_rope(config, sizes)
    norm = common.rms_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, **common.attention_bias(config)),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config, bias=config.flag("mlp_bias", False)),
    )
    return common.model(config, sizes, (layer,) * sizes.n_layers, norm)


FAMILY = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    spec=spec,
    # A way to compute in training, not another result.
    ignored=frozenset({"pretraining_tp"}),
    layout=common.layout,
    gguf=gguf.LLAMA,
)
