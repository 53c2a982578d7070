"""Phi-3, 3.5 and 4: llama's block with fused projections, rope on part of a head, LongRoPE.

Source: transformers 5 (`models/phi3`).
"""

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family, Layout, Rename
from engine.families.rope import LONGROPE_TYPES, rope_of, rope_table
from engine.spec import DenseMLP, GroupedQueryAttention, LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=4096)
    rope = rope_of(
        rope_table(config, original_context=4096),
        sizes.head_dim,
        sizes.context,
        types=LONGROPE_TYPES,
        partial=True,
    )
    # Of the files' own code, and without effect in transformers; other values would be other models.
    for key, only in _ONLY.items():
        config.must_be(key, only)
    norm = common.rms_norm(config, 1e-5)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(sizes, rope, window=config.optional_integer("sliding_window", None)),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    return common.model(config, sizes, (layer,) * sizes.n_layers, norm)


_ONLY = {
    "attention_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "mlp_bias": False,
}


def _layout(spec: ModelSpec) -> Layout:
    attn, mlp = spec.layers[0].attn, spec.layers[0].mlp
    assert isinstance(attn, GroupedQueryAttention)
    assert isinstance(mlp, DenseMLP)
    q, kv = attn.n_heads * attn.head_dim, attn.n_kv_heads * attn.head_dim
    qkv = Rename(common.BLOCK + "self_attn.qkv_proj.weight")
    gate_up = Rename(common.BLOCK + "mlp.gate_up_proj.weight")
    return common.layout(
        spec,
        {
            **common.split(qkv, {"attn.q.weight": q, "attn.k.weight": kv, "attn.v.weight": kv}),
            **common.split(gate_up, {"mlp.gate.weight": mlp.ffn_dim, "mlp.up.weight": mlp.ffn_dim}),
        },
    )


FAMILY = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    spec=spec,
    # Dropout.
    ignored=frozenset({"embd_pdrop", "resid_pdrop"}),
    layout=_layout,
)
