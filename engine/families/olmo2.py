"""OLMo 2: norms after attention and feed-forward instead of before, q and k normed over all heads.

Source: transformers 5 (`models/olmo2`) and OLMo et al. 2024.
"""

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec, QKNorm


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=2048)
    rope = common.read_rope(config, sizes, in_float32=True)
    norm = common.rms_norm(config, 1e-5, product_in_float32=True)
    layer = LayerSpec(
        pre_attn_norm=None,
        attn=common.attention(
            sizes, rope, **common.attention_bias(config), qk_norm=QKNorm(norm, over="all")
        ),
        post_attn_norm=norm,
        pre_mlp_norm=None,
        mlp=common.gated_mlp(config),
        post_mlp_norm=norm,
    )
    return common.model(config, sizes, (layer,) * sizes.n_layers, norm)


FAMILY = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    spec=spec,
    ignored=frozenset(),
    layout=common.layout,
)
