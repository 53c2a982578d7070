"""Llama 1 to 3.2, and every checkpoint that calls itself LlamaForCausalLM (SmolLM2 among them).

Source: the definition in transformers 5 (`models/llama`), Touvron et al. 2023, and the GGUF
specification for the names in GGUF files.
"""

from __future__ import annotations

from engine.families.config import Config
from engine.families.family import Deinterleave, Family, GGUFNames, Layout, Rename, Tie, Verb
from engine.spec import DenseMLP, GroupedQueryAttention, LayerSpec, ModelSpec, RMSNorm


def spec(config: Config) -> ModelSpec:
    dim = config.integer("hidden_size")
    context = config.integer("max_position_embeddings", 2048)
    n_heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", dim // n_heads)
    attention_bias = config.flag("attention_bias", False)
    config.one_of("hidden_act", {"silu": None}, "silu")  # the one that DenseMLP stands for
    norm = RMSNorm(eps=config.number("rms_norm_eps", 1e-6))
    layer = LayerSpec(
        pre_attn_norm=norm,
        attn=GroupedQueryAttention(
            n_heads=n_heads,
            n_kv_heads=config.integer("num_key_value_heads", n_heads),
            head_dim=head_dim,
            rope=config.rope(head_dim, context),
            qkv_bias=attention_bias,
            out_bias=attention_bias,
        ),
        pre_mlp_norm=norm,
        mlp=DenseMLP(
            ffn_dim=config.integer("intermediate_size"),
            bias=config.flag("mlp_bias", False),
        ),
    )
    return ModelSpec(
        vocab_size=config.integer("vocab_size"),
        dim=dim,
        context=context,
        layers=(layer,) * config.integer("num_hidden_layers"),
        final_norm=norm,
        tied_head=config.flag("tie_word_embeddings", False),
    )


def layout(spec: ModelSpec) -> Layout:
    block = "model.layers.{i}."
    verbs: dict[str, Verb] = {
        "embed.weight": Rename("model.embed_tokens.weight"),
        "layers.{i}.pre_attn_norm.weight": Rename(block + "input_layernorm.weight"),
        "layers.{i}.pre_mlp_norm.weight": Rename(block + "post_attention_layernorm.weight"),
        "final_norm.weight": Rename("model.norm.weight"),
        "logits.weight": Rename("lm_head.weight"),
    }
    for ours, theirs in _HF_LINEARS.items():
        for part in ("weight", "bias"):
            verbs[f"layers.{{i}}.{ours}.{part}"] = Rename(f"{block}{theirs}.{part}")
    if spec.tied_head:
        verbs["embed.weight"] = Tie("model.embed_tokens.weight", "logits.weight")
        verbs["logits.weight"] = Tie("lm_head.weight", "embed.weight")
    # Frequencies that transformers before 4.30 saved; they follow from the config.
    return Layout(verbs, ignored=("model.layers.*.self_attn.rotary_emb.inv_freq",))


def gguf_layout(spec: ModelSpec) -> Layout:
    verbs: dict[str, Verb] = {
        "embed.weight": Rename("token_embd.weight"),
        "layers.{i}.pre_attn_norm.weight": Rename("blk.{i}.attn_norm.weight"),
        "layers.{i}.pre_mlp_norm.weight": Rename("blk.{i}.ffn_norm.weight"),
        "final_norm.weight": Rename("output_norm.weight"),
        "logits.weight": Tie("output.weight", "embed.weight"),
    }
    for ours, theirs in _GGUF_LINEARS.items():
        for part in ("weight", "bias"):
            verbs[f"layers.{{i}}.{ours}.{part}"] = Rename(f"blk.{{i}}.{theirs}.{part}")
    for part in ("weight", "bias"):
        verbs[f"layers.{{i}}.attn.q.{part}"] = Deinterleave(f"blk.{{i}}.attn_q.{part}", "n_heads")
        verbs[f"layers.{{i}}.attn.k.{part}"] = Deinterleave(
            f"blk.{{i}}.attn_k.{part}", "n_kv_heads"
        )
    # Its numbers are in the config by then: the reader turns them into a rope scaling.
    return Layout(verbs, ignored=("rope_freqs.weight",))


_HF_LINEARS = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_GGUF_LINEARS = {
    "attn.v": "attn_v",
    "attn.out": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}

FAMILY = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    spec=spec,
    # Dropout acts in training alone; pretraining_tp was a way to compute, not another result.
    ignored=frozenset({"attention_dropout", "pretraining_tp"}),
    layout=layout,
    gguf=GGUFNames(
        keys={
            "block_count": "num_hidden_layers",
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "feed_forward_length": "intermediate_size",
            "attention.head_count": "num_attention_heads",
            "attention.head_count_kv": "num_key_value_heads",
            "attention.key_length": "head_dim",
            "rope.dimension_count": "head_dim",
            "attention.layer_norm_rms_epsilon": "rms_norm_eps",
            "rope.freq_base": "rope_theta",
            "vocab_size": "vocab_size",
        },
        present={
            "attention_bias": "blk.0.attn_q.bias",
            "mlp_bias": "blk.0.ffn_gate.bias",
        },
        ignored=frozenset({"attention.value_length"}),
        layout=gguf_layout,
    ),
)
