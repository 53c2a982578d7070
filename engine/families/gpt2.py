"""GPT-2: learned positions, layer norms, a plain feed-forward, biases everywhere.

Source: transformers 5 (`models/gpt2`) and Radford et al. 2019.
"""

from engine.errors import ModelFileError
from engine.families import common
from engine.families.config import Config
from engine.families.family import Family, Layout, Rename, Tie, Transpose, Verb
from engine.spec import DenseMLP, LayerNorm, LayerSpec, ModelSpec


def spec(config: Config) -> ModelSpec:
    dim, n_heads = config.integer("n_embd"), config.integer("n_head")
    context = config.integer("n_positions", 1024)
    if dim % n_heads:
        raise ModelFileError(
            f"config.json: n_embd {dim} cannot be shared by {n_heads} heads evenly"
        )
    sizes = common.Sizes(
        dim=dim,
        context=context,
        n_layers=config.integer("n_layer"),
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=dim // n_heads,
    )
    norm = LayerNorm(eps=config.number("layer_norm_epsilon", 1e-5))
    mlp = DenseMLP(
        ffn_dim=config.integer("n_inner", 4 * dim),
        activation=config.one_of("activation_function", common.ACTIVATIONS, "gelu_new"),
        gated=False,
        bias=True,
    )
    scale = sizes.head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    layers = tuple(
        LayerSpec(
            pre_attn_norm=norm,
            attn=common.attention(
                sizes,
                rope=None,
                scale=scale / (i + 1) if by_layer else scale,
                qkv_bias=True,
                out_bias=True,
            ),
            pre_mlp_norm=norm,
            mlp=mlp,
        )
        for i in range(sizes.n_layers)
    )
    return common.model(config, sizes, layers, norm, tied=True, learned_positions=context)


def _layout(spec: ModelSpec) -> Layout:
    verbs: dict[str, Verb] = {
        "embed.weight": Rename("wte.weight"),
        "embed.positions": Rename("wpe.weight"),
        "logits.weight": Rename("lm_head.weight"),
    }
    if spec.tied_head:
        verbs["embed.weight"] = Tie("wte.weight", "logits.weight")
        verbs["logits.weight"] = Tie("lm_head.weight", "embed.weight")
    for part in ("weight", "bias"):
        verbs[f"final_norm.{part}"] = Rename(f"ln_f.{part}")
        verbs[f"layers.{{i}}.pre_attn_norm.{part}"] = Rename(f"h.{{i}}.ln_1.{part}")
        verbs[f"layers.{{i}}.pre_mlp_norm.{part}"] = Rename(f"h.{{i}}.ln_2.{part}")
        verbs |= common.split(
            _linear("attn.c_attn", part),
            {f"attn.{name}.{part}": spec.dim for name in ("q", "k", "v")},
        )
        verbs[f"layers.{{i}}.attn.out.{part}"] = _linear("attn.c_proj", part)
        verbs[f"layers.{{i}}.mlp.up.{part}"] = _linear("mlp.c_fc", part)
        verbs[f"layers.{{i}}.mlp.down.{part}"] = _linear("mlp.c_proj", part)
    # The causal mask, as a buffer.
    return Layout(
        verbs,
        ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
        prefixes=("transformer.", ""),
    )


def _linear(name: str, part: str) -> Verb:
    """Weights are stored [in, out]."""
    stored = Rename(f"h.{{i}}.{name}.{part}")
    return Transpose(stored) if part == "weight" else stored


FAMILY = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    spec=spec,
    # Dropout, a pooling head of other classes, what the first files have besides, and in which order
    # and dtype one attention of several computes the same.
    ignored=frozenset(
        """attn_pdrop classifier_dropout embd_pdrop n_ctx n_special predict_special_tokens
        reorder_and_upcast_attn resid_pdrop summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj""".split()
    ),
    layout=_layout,
)
