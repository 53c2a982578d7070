"""How families are written in GGUF files. Source: the GGUF specification, and llama.cpp's converters.

Rows of q and k lie in rope's interleaved order in files of the architecture llama, and Gemma's norms
hold 1 + weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from engine.families.family import Add, Deinterleave, GGUFNames, Layout, Rename, Tie, Verb
from engine.spec import GroupedQueryAttention, ModelSpec

_NORMS = {
    "pre_attn_norm": "attn_norm",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "pre_mlp_norm": "ffn_norm",
    "post_mlp_norm": "post_ffw_norm",
}
_LINEARS = {
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.out": "attn_output",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_KEYS = {
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
}
# Values are as long as keys, or their tensors have another shape.
_IGNORED = frozenset({"attention.value_length"})


def _layout(spec: ModelSpec, *, interleaved: bool = False, one_added: bool = False) -> Layout:
    norms = {"final_norm.weight": "output_norm.weight"} | {
        f"layers.{{i}}.{ours}.weight": f"blk.{{i}}.{theirs}.weight"
        for ours, theirs in _NORMS.items()
    }
    verbs: dict[str, Verb] = {
        "embed.weight": Rename("token_embd.weight"),
        "logits.weight": Tie("output.weight", "embed.weight"),
    }
    for ours, theirs in norms.items():
        verbs[ours] = Add(Rename(theirs), -1.0) if one_added else Rename(theirs)
    for ours, theirs in _LINEARS.items():
        for part in ("weight", "bias"):
            verbs[f"layers.{{i}}.{ours}.{part}"] = Rename(f"blk.{{i}}.{theirs}.{part}")
    attn = spec.layers[0].attn
    if interleaved and isinstance(attn, GroupedQueryAttention):
        for ours, heads in (("q", attn.n_heads), ("k", attn.n_kv_heads)):
            for part in ("weight", "bias"):
                name = f"layers.{{i}}.attn.{ours}.{part}"
                verbs[name] = Deinterleave(verbs[name], groups=heads)
    # Its numbers are in the config by then: the reader turns them into a rope scaling.
    return Layout(verbs, ignored=("rope_freqs.weight",))


def _gemma3_implied(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What llama.cpp knows of Gemma 3 without the file (`load_hparams`): every sixth layer is full.

    Scores are scaled by the head's size, but in the model of 62 layers, of 27 billion parameters.
    """
    largest = config["num_hidden_layers"] == 62
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"]
        if largest
        else config["head_dim"],
        "rope_local_base_freq": 10000.0,
        "sliding_window": None,
        "sliding_window_pattern": 6 if "sliding_window" in config else 1,
    }


LLAMA = GGUFNames(
    architecture="llama",
    keys=_KEYS,
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"},
    ignored=_IGNORED,
    layout=partial(_layout, interleaved=True),
)
QWEN2 = GGUFNames(architecture="qwen2", keys=_KEYS, ignored=_IGNORED, layout=_layout)
QWEN3 = GGUFNames(
    architecture="qwen3",
    keys=_KEYS,
    present={"attention_bias": "blk.0.attn_q.bias"},
    ignored=_IGNORED,
    layout=_layout,
)
GEMMA3 = GGUFNames(
    architecture="gemma3",
    keys={
        **_KEYS,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    ignored=_IGNORED,
    layout=partial(_layout, one_added=True),
    implied=_gemma3_implied,
)
