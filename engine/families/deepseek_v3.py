"""DeepSeek-V3 and R1: latent attention, and experts in groups with a correction, one of them shared.

Source: transformers 5 (`models/deepseek_v3`) and DeepSeek-AI 2024.
"""

from dataclasses import replace

from engine.families import common
from engine.families.config import Config
from engine.families.family import Family, Layout, Rename, Verb
from engine.families.rope import rope_of, rope_table, yarn_magnitude
from engine.spec import (
    Groups,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoE,
    RMSNorm,
    Router,
    YarnScaling,
)


def spec(config: Config) -> ModelSpec:
    for key, only in _ONLY.items():
        config.must_be(key, only)
    rope_dim = config.integer("qk_rope_head_dim", 64)
    config.must_be("head_dim", rope_dim)
    sizes = common.read_sizes(config, context=4096, head_dim=rope_dim)
    config.must_be("num_key_value_heads", sizes.n_heads)
    norm = common.rms_norm(config)
    dense = LayerSpec(
        pre_attn_norm=norm,
        attn=_attention(config, sizes, rope_dim),
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config),
    )
    sparse = replace(dense, mlp=_moe(config))
    n_dense = min(config.integer("first_k_dense_replace", 3, least=0), sizes.n_layers)
    layers = (dense,) * n_dense + (sparse,) * (sizes.n_layers - n_dense)
    return common.model(config, sizes, layers, norm)


# Of the files' own code; transformers always computes this.
_ONLY = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def _attention(config: Config, sizes: common.Sizes, rope_dim: int) -> LatentAttention:
    table = rope_table(config)
    interleaved = config.flag("rope_interleave", True)
    rope = rope_of(table, rope_dim, sizes.context, interleaved=interleaved)
    nope_dim = config.integer("qk_nope_head_dim", 128)
    scale = (nope_dim + rope_dim) ** -0.5
    mscale = table.number("mscale_all_dim", 0.0)
    if mscale and isinstance(rope.scaling, YarnScaling):
        magnitude = yarn_magnitude(rope.scaling.factor, mscale)
        scale *= magnitude * magnitude
    return LatentAttention(
        n_heads=sizes.n_heads,
        q_rank=config.optional_integer("q_lora_rank", 1536),
        kv_rank=config.integer("kv_lora_rank", 512),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        v_dim=config.integer("v_head_dim", 128),
        scale=scale,
        rope=rope,
        latent_norm=RMSNorm(eps=1e-6),  # whatever rms_norm_eps says
        bias=config.flag("attention_bias", False),
    )


def _moe(config: Config) -> MoE:
    ffn_dim = config.integer("moe_intermediate_size", 2048)
    dense = common.gated_mlp(config)
    return MoE(
        n_experts=common.n_experts(config, "n_routed_experts", "num_local_experts", 256),
        top_k=config.integer("num_experts_per_tok", 8),
        ffn_dim=ffn_dim,
        router=Router(
            score="sigmoid",
            normalise=config.flag("norm_topk_prob", True),
            scale=config.number("routed_scaling_factor", 2.5),
            correction=True,
            groups=Groups(n=config.integer("n_group", 8), kept=config.integer("topk_group", 4)),
        ),
        activation=dense.activation,
        shared=replace(dense, ffn_dim=ffn_dim * config.integer("n_shared_experts", 1)),
    )


# Layers behind the last that predict further tokens, one in the released files; the decoder does
# without them.
_MTP_LAYERS = 4


def _layout(spec: ModelSpec) -> Layout:
    attn = spec.layers[0].attn
    assert isinstance(attn, LatentAttention)
    verbs: dict[str, Verb] = {**common.ROUTER, **common.expert_verbs(spec, common.EXPERT)}
    for part in ("weight", "bias"):
        verbs |= common.split(
            Rename(f"{common.BLOCK}self_attn.kv_a_proj_with_mqa.{part}"),
            {f"attn.kv_down.{part}": attn.kv_rank, f"attn.k.{part}": attn.rope_dim},
        )
    names = {
        "attn.q_down.weight": "self_attn.q_a_proj.weight",
        "attn.q_down.bias": "self_attn.q_a_proj.bias",
        "attn.q_norm.weight": "self_attn.q_a_layernorm.weight",
        "attn.kv_norm.weight": "self_attn.kv_a_layernorm.weight",
        "attn.kv_up.weight": "self_attn.kv_b_proj.weight",
        "mlp.correction": "mlp.gate.e_score_correction_bias",
        "mlp.shared.gate.weight": "mlp.shared_experts.gate_proj.weight",
        "mlp.shared.up.weight": "mlp.shared_experts.up_proj.weight",
        "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
    }
    if attn.q_rank is not None:
        names["attn.q.weight"] = "self_attn.q_b_proj.weight"
    verbs |= {f"layers.{{i}}.{ours}": Rename(common.BLOCK + name) for ours, name in names.items()}
    further = range(spec.n_layers, spec.n_layers + _MTP_LAYERS)
    written = common.layout(spec, verbs, ignored=tuple(f"model.layers.{i}.*" for i in further))
    return replace(written, float32=_IN_FLOAT32)


# Which experts are chosen hangs on the last bits of these.
_IN_FLOAT32 = frozenset({"layers.{i}.mlp.router_logits.weight", "layers.{i}.mlp.correction"})


FAMILY = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    spec=spec,
    # Training's, how many further layers there are, and a sum that is not read.
    ignored=frozenset(
        """aux_loss_alpha ep_size num_mtp_layers num_nextn_predict_layers pretraining_tp qk_head_dim
        seq_aux""".split()
    ),
    layout=_layout,
)
