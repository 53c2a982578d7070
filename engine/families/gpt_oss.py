"""gpt-oss: a learned sink per head, windows in every other layer, experts with biases and MXFP4.

Source: transformers 5 (`models/gpt_oss`, `integrations/mxfp4.py` for the axes of the blocks).
"""

from engine.errors import ModelFileError
from engine.families import common
from engine.families.config import Config
from engine.families.family import (
    Deinterleave,
    Either,
    Family,
    Layout,
    Microscaled,
    Rename,
    Transpose,
    Verb,
)
from engine.families.rope import rope_of, rope_table
from engine.spec import ClampedSwiGLU, LayerSpec, ModelSpec, MoE, Router

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def spec(config: Config) -> ModelSpec:
    _check_quantisation(config)
    sizes = common.read_sizes(config, context=131072, kv_heads=8, head_dim=64)
    table = rope_table(config, theta=150000.0, default=_YARN)
    rope = rope_of(table, sizes.head_dim, sizes.context)
    norm = common.rms_norm(config, 1e-5, product_in_float32=True)
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=common.attention(
            sizes, rope, **common.attention_bias(config, default=True), sinks=True
        ),
        pre_mlp_norm=norm,
        mlp=MoE(
            n_experts=common.n_experts(config, "num_local_experts", "num_experts", 128),
            top_k=config.integer("num_experts_per_tok", 4),
            ffn_dim=config.integer("intermediate_size"),
            # The softmax over those chosen is that over all, divided by their sum.
            router=Router(score="softmax", normalise=True, bias=True),
            activation=ClampedSwiGLU(
                alpha=config.number("swiglu_alpha", 1.702),
                limit=config.number("swiglu_limit", 7.0),
            ),
            bias=True,
        ),
    )
    window = config.optional_integer("sliding_window", 128)
    windows = config.windows(sizes.n_layers, window, lambda i: i % 2 == 0)
    return common.model(config, sizes, common.with_windows(layer, windows), norm)


def _check_quantisation(config: Config) -> None:
    """MXFP4 is decoded as it is read; which tensors have it, the file itself says."""
    config.read.add("quantization_config")
    given = config.values.get("quantization_config")
    if given is not None and not (isinstance(given, dict) and given.get("quant_method") == "mxfp4"):
        raise ModelFileError(
            f"config.json: quantization_config {given!r:.60} is not supported for gpt_oss "
            "(supported: quant_method mxfp4)"
        )


def _layout(spec: ModelSpec) -> Layout:
    moe = common.moe_of(spec)
    assert moe is not None
    experts = common.BLOCK + "mlp.experts."

    def matrices(name: str) -> Verb:
        """[E, out, in]; plain tensors are stored [E, in, out], blocks row by row of the output."""
        return Either(
            (
                Transpose(Rename(experts + name)),
                Microscaled(f"{experts}{name}_blocks", f"{experts}{name}_scales"),
            )
        )

    verbs: dict[str, Verb] = {
        "layers.{i}.attn.sinks": Rename(common.BLOCK + "self_attn.sinks"),
        "layers.{i}.mlp.router_logits.weight": Rename(common.BLOCK + "mlp.router.weight"),
        "layers.{i}.mlp.router_logits.bias": Rename(common.BLOCK + "mlp.router.bias"),
        "layers.{i}.mlp.experts.down": matrices("down_proj"),
        "layers.{i}.mlp.experts.down_bias": Rename(experts + "down_proj_bias"),
    }
    for suffix, fused in (
        ("", matrices("gate_up_proj")),
        ("_bias", Rename(experts + "gate_up_proj_bias")),
    ):
        verbs |= common.split(
            Deinterleave(fused, groups=1, axis=1),
            {f"mlp.experts.{part}{suffix}": moe.ffn_dim for part in ("gate", "up")},
            axis=1,
        )
    return common.layout(spec, verbs)


FAMILY = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    spec=spec,
    # The activation is the family's own, and two keys say again what others do.
    ignored=frozenset({"hidden_act", "experts_per_token", "initial_context_length"}),
    layout=_layout,
)
