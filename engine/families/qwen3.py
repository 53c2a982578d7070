"""Qwen3: llama's block with a norm of each head's query and key.

Source: transformers 5 (`models/qwen3`).
"""

from engine.families import common, gguf
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec, QKNorm


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=32768, kv_heads=32, head_dim=128)
    rope = common.read_rope(config, sizes)
    norm = common.rms_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(
            sizes, rope, **common.attention_bias(config), qk_norm=QKNorm(norm, over="head")
        ),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    return common.model(
        config, sizes, common.with_windows(layer, common.qwen_windows(config, sizes.n_layers)), norm
    )


FAMILY = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    spec=spec,
    ignored=frozenset(),
    layout=common.layout,
    gguf=gguf.QWEN3,
)
