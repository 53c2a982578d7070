"""Qwen2 and Qwen2.5: llama's block with biases on q, k and v alone.

Source: transformers 5 (`models/qwen2`).
"""

from engine.families import common, gguf
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=32768, kv_heads=32)
    rope = common.read_rope(config, sizes)
    norm = common.rms_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, qkv_bias=True),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    return common.model(
        config, sizes, common.with_windows(layer, common.qwen_windows(config, sizes.n_layers)), norm
    )


FAMILY = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    spec=spec,
    ignored=frozenset(),
    layout=common.layout,
    gguf=gguf.QWEN2,
)
