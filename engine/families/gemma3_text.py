"""Gemma 3's text model: windows and a rope of their own in most layers, q and k normed per head.

Source: transformers 5 (`models/gemma3`).
"""

from dataclasses import replace
from functools import partial

from engine.families import common, gguf
from engine.families.config import Config
from engine.families.family import Family
from engine.families.rope import rope_of
from engine.spec import LayerSpec, ModelSpec, QKNorm, Rope


def spec(config: Config) -> ModelSpec:
    # Files that hold a text model beside others leave out the sizes that are the class's own.
    sizes = common.read_sizes(
        config,
        context=131072,
        kv_heads=4,
        head_dim=256,
        dim=2304,
        n_layers=26,
        n_heads=8,
    )
    everywhere, nearby = _ropes(config, sizes)
    norm = common.gemma_norm(config)
    attn = common.attention(
        sizes,
        everywhere,
        **common.attention_bias(config),
        scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        qk_norm=QKNorm(norm, over="head"),
    )
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=attn,
        post_attn_norm=norm,
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(
            config, ffn_dim=9216, key="hidden_activation", default="gelu_pytorch_tanh"
        ),
        post_mlp_norm=norm,
    )
    every = config.integer("sliding_window_pattern", 6)
    window = config.optional_integer("sliding_window", 4096)
    windows = config.windows(sizes.n_layers, window, lambda i: (i + 1) % every != 0)
    return common.model(
        config,
        sizes,
        tuple(
            replace(layer, attn=replace(attn, rope=nearby, window=window)) if window else layer
            for window in windows
        ),
        norm,
        tied=True,
        vocab_size=262208,
        embed_scale=common.gemma_scale(sizes),
        logit_softcap=config.optional_number("final_logit_softcapping"),
    )


def _ropes(config: Config, sizes: common.Sizes) -> tuple[Rope, Rope]:
    """That of full and that of sliding attention; the hub's rope_scaling concerns the first alone."""
    nested = config.table("rope_parameters")
    # Of a rope_scaling that says its kind by the older name `type`, transformers takes no notice.
    unscaled = {} if nested.values else {"rope_type": "default"}
    tables = (
        {
            "rope_theta": config.number("rope_theta", 1000000.0),
            **unscaled,
            **nested.table("full_attention").values,
            **config.table("rope_scaling").values,
        },
        {
            "rope_theta": config.number("rope_local_base_freq", 10000.0),
            **nested.table("sliding_attention").values,
        },
    )
    nested.finish(frozenset(), where="the rope parameters of config.json")
    for table in tables:
        table.pop("truncate", None)  # transformers looks for it beside the two, where none is
    whole, local = (
        rope_of(Config(table, config.family), sizes.head_dim, sizes.context) for table in tables
    )
    return whole, local


FAMILY = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    spec=spec,
    # transformers goes by hidden_activation, has no softcap in this attention, whatever the file
    # says, and writes the pattern that it was given beside the layer_types that it made of it.
    ignored=frozenset({"hidden_act", "attn_logit_softcapping", "_sliding_window_pattern"}),
    layout=partial(common.layout, multimodal=True),
    gguf=gguf.GEMMA3,
    multimodal={"gemma3": "Gemma3ForConditionalGeneration"},
)
