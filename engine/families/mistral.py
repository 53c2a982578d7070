"""Mistral 7B and its successors: llama's block, all layers with a window or none.

Source: transformers 5 (`models/mistral`) and Jiang et al. 2023.
"""

from functools import partial

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=131072, kv_heads=8)
    rope = common.read_rope(config, sizes)
    # Null means no window, but a file that is silent means the first model's.
    window = config.optional_integer("sliding_window", 4096)
    norm = common.rms_norm(config)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, window=window),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    return common.model(config, sizes, (layer,) * sizes.n_layers, norm)


FAMILY = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    spec=spec,
    ignored=frozenset(),
    layout=partial(common.layout, multimodal=True),
    multimodal={"mistral3": "Mistral3ForConditionalGeneration"},
)
