"""How families are written in GGUF files. Source: the GGUF specification, and llama.cpp's converters.

Rows of q and k lie in rope's interleaved order in files of the architecture llama.
"""

from __future__ import annotations

from engine.families.family import Deinterleave, GGUFNames, Layout, Rename, Tie, Verb
from engine.spec import GroupedQueryAttention, ModelSpec

_LINEARS = {
    "attn.v": "attn_v",
    "attn.out": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}


def _llama_layout(spec: ModelSpec) -> Layout:
    attn = spec.layers[0].attn
    assert isinstance(attn, GroupedQueryAttention)
    verbs: dict[str, Verb] = {
        "embed.weight": Rename("token_embd.weight"),
        "layers.{i}.pre_attn_norm.weight": Rename("blk.{i}.attn_norm.weight"),
        "layers.{i}.pre_mlp_norm.weight": Rename("blk.{i}.ffn_norm.weight"),
        "final_norm.weight": Rename("output_norm.weight"),
        "logits.weight": Tie("output.weight", "embed.weight"),
    }
    for ours, theirs in _LINEARS.items():
        for part in ("weight", "bias"):
            verbs[f"layers.{{i}}.{ours}.{part}"] = Rename(f"blk.{{i}}.{theirs}.{part}")
    for name, heads in (("q", attn.n_heads), ("k", attn.n_kv_heads)):
        for part in ("weight", "bias"):
            rows = Rename(f"blk.{{i}}.attn_{name}.{part}")
            verbs[f"layers.{{i}}.attn.{name}.{part}"] = Deinterleave(rows, groups=heads)
    # Its numbers are in the config by then: the reader turns them into a rope scaling.
    return Layout(verbs, ignored=("rope_freqs.weight",))


LLAMA = GGUFNames(
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
    layout=_llama_layout,
)
