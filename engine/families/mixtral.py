"""Mixtral: Mistral's attention, and experts in every layer.

Source: transformers 5 (`models/mixtral`) and Jiang et al. 2024.
"""

from engine.families import common
from engine.families.config import Config
from engine.families.family import Either, Family, Layout, Rename
from engine.spec import LayerSpec, ModelSpec, MoE, Router


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=131072, kv_heads=8)
    rope = common.read_rope(config, sizes, theta=1000000.0)
    norm = common.rms_norm(config, 1e-5)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, window=config.optional_integer("sliding_window", None)),
        pre_mlp_norm=norm,
        mlp=MoE(
            n_experts=common.n_experts(config, "num_local_experts", "num_experts", 8),
            top_k=config.integer("num_experts_per_tok", 2),
            ffn_dim=config.integer("intermediate_size"),
            router=Router(score="softmax", normalise=True),
            activation=config.one_of("hidden_act", common.ACTIVATIONS, "silu"),
        ),
    )
    return common.model(config, sizes, (layer,) * sizes.n_layers, norm)


_OLD = "block_sparse_moe."
_EXPERT = {
    part: f"{_OLD}experts.{{e}}.{name}.weight"
    for part, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


def _layout(spec: ModelSpec) -> Layout:
    router = "layers.{i}.mlp.router_logits.weight"
    named = Either((common.ROUTER[router], Rename(common.BLOCK + _OLD + "gate.weight")))
    return common.layout(spec, {router: named, **common.expert_verbs(spec, _EXPERT)})


FAMILY = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    spec=spec,
    # Noise on the router's input, in training alone.
    ignored=frozenset({"router_jitter_noise"}),
    layout=_layout,
)
