"""SmolLM3: llama's block, every few layers without rope.

Source: transformers 5 (`models/smollm3`).
"""

from dataclasses import replace

from engine.errors import ModelFileError
from engine.families import common
from engine.families.config import Config
from engine.families.family import Family
from engine.spec import LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    sizes = common.read_sizes(config, context=32768, kv_heads=4)
    rope = common.read_rope(config, sizes, theta=2000000.0)
    norm = common.rms_norm(config)
    attn = common.attention(sizes, rope, **common.attention_bias(config))
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=attn,
        pre_mlp_norm=norm,
        mlp=common.gated_mlp(config, bias=config.flag("mlp_bias", False)),
    )
    turned = _turned(config, sizes.n_layers)
    # use_sliding_window decides which layers slide where layer_types does not.
    window = config.optional_integer("sliding_window", None)
    slides = config.flag("use_sliding_window", False) and window is not None
    windows = config.windows(sizes.n_layers, window, lambda i: slides and not turned[i])
    layers = tuple(
        replace(layer, attn=replace(attn, rope=rope if turns else None, window=window))
        for turns, window in zip(turned, windows, strict=True)
    )
    return common.model(config, sizes, layers, norm, tied=True)


def _turned(config: Config, n_layers: int) -> tuple[bool, ...]:
    """Whether a layer has rope: its entry of `no_rope_layers`, which says 1 where it has."""
    interval = config.integer("no_rope_layer_interval", 4)
    given = config.integers("no_rope_layers")
    if given is None:
        return tuple((i + 1) % interval != 0 for i in range(n_layers))
    if len(given) < n_layers:
        raise ModelFileError(
            f"config.json: no_rope_layers has {len(given)} entries for {n_layers} layers"
        )
    return tuple(map(bool, given[:n_layers]))


FAMILY = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    spec=spec,
    # The published files have them, and transformers reads neither.
    ignored=frozenset({"max_window_layers", "pretraining_tp"}),
    layout=common.layout,
)
