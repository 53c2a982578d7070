"""Models of Llama's shape with random weights: as fast as real ones, and there without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

#: By name: dim, layers, query heads, key/value heads, feed-forward, vocabulary, tied head. The sizes are
#: those of Llama 3.2 1B, 3.2 3B and 3.1 8B; `tiny` is for tests.
SHAPES = {
    "tiny": (64, 2, 4, 2, 96, 256, True),
    "1b": (2048, 16, 32, 8, 8192, 128256, True),
    "3b": (3072, 28, 24, 8, 8192, 128256, True),
    "8b": (4096, 32, 32, 8, 14336, 128256, False),
}
_SPREAD = 0.02  # of the weights; norms are ones


def config(shape: str, dtype: str) -> dict[str, Any]:
    """The config.json of a model of that shape."""
    dim, layers, heads, kv_heads, ffn_dim, vocab_size, tied = SHAPES[shape]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim // heads,
        "intermediate_size": ffn_dim,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 8192 if shape != "tiny" else 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "dtype": dtype,
    }


def write_model(shape: str, folder: Path, dtype: str, device: str) -> None:
    """Draws the weights on `device`, and writes an ordinary Hugging Face folder."""
    said = config(shape, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(said, indent=1), encoding="utf-8")
    tensors = {name: drawn.cpu() for name, drawn in _drawn(said, torch.device(device))}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _drawn(said: dict[str, Any], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    rng = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, said["dtype"])

    def matrix(n_out: int, n_in: int) -> Tensor:
        drawn = torch.empty(n_out, n_in, dtype=dtype, device=device)
        return drawn.normal_(0, _SPREAD, generator=rng)

    dim, ffn_dim, head = said["hidden_size"], said["intermediate_size"], said["head_dim"]
    wide, narrow = said["num_attention_heads"] * head, said["num_key_value_heads"] * head
    ones = torch.ones(dim, dtype=dtype)
    yield "model.embed_tokens.weight", matrix(said["vocab_size"], dim)
    for i in range(said["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, n_out, n_in in (
            ("self_attn.q_proj", wide, dim),
            ("self_attn.k_proj", narrow, dim),
            ("self_attn.v_proj", narrow, dim),
            ("self_attn.o_proj", dim, wide),
            ("mlp.gate_proj", ffn_dim, dim),
            ("mlp.up_proj", ffn_dim, dim),
            ("mlp.down_proj", dim, ffn_dim),
        ):
            yield f"{layer}{name}.weight", matrix(n_out, n_in)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{name}.weight", ones.clone()
    yield "model.norm.weight", ones.clone()
    if not said["tie_word_embeddings"]:
        yield "lm_head.weight", matrix(said["vocab_size"], dim)
