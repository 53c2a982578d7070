"""A llama so small that every tensor can be looked at, written as safetensors, shards and GGUF.

All sizes differ (dim 64, 4 heads of 24 on 2 key/value heads, ffn 160, vocabulary 40), so that a
wrong transpose or head count cannot fit. Rows are multiples of 32, the block of the quantised types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from engine.backends import backend
from engine.decoder import Decoder
from engine.weights import load_parameters, open_checkpoint

DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS = 64, 4, 2, 24, 160, 40, 2

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}

LINEARS = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, DIM),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, DIM),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, DIM),
    "self_attn.o_proj": (DIM, HEADS * HEAD_DIM),
    "mlp.gate_proj": (FFN, DIM),
    "mlp.up_proj": (FFN, DIM),
    "mlp.down_proj": (DIM, FFN),
}
OURS = dict(
    zip(
        LINEARS,
        ("attn.q", "attn.k", "attn.v", "attn.out", "mlp.gate", "mlp.up", "mlp.down"),
        strict=True,
    )
)


def tensors(*, bias: bool = False) -> dict[str, torch.Tensor]:
    """Every tensor of the model by its Hugging Face name, drawn at random, norms included."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, DIM),
        "model.norm.weight": (DIM,),
        "lm_head.weight": (VOCAB, DIM),
    }
    for i in range(LAYERS):
        block = f"model.layers.{i}."
        shapes[block + "input_layernorm.weight"] = (DIM,)
        shapes[block + "post_attention_layernorm.weight"] = (DIM,)
        for name, shape in LINEARS.items():
            shapes[f"{block}{name}.weight"] = shape
            if bias:
                shapes[f"{block}{name}.bias"] = shape[:1]
    rng = torch.Generator().manual_seed(7)
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def expected(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The decoder's parameters, by their names, that the Hugging Face tensors `held` must become."""
    plain = {
        "embed.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "logits.weight": "lm_head.weight",
    }
    for i in range(LAYERS):
        theirs, ours = f"model.layers.{i}.", f"layers.{i}."
        plain[ours + "pre_attn_norm.weight"] = theirs + "input_layernorm.weight"
        plain[ours + "pre_mlp_norm.weight"] = theirs + "post_attention_layernorm.weight"
        for name, short in OURS.items():
            plain[f"{ours}{short}.weight"] = f"{theirs}{name}.weight"
            plain[f"{ours}{short}.bias"] = f"{theirs}{name}.bias"
    return {ours: held[theirs] for ours, theirs in plain.items() if theirs in held}


def save_folder(
    folder: Path, held: Mapping[str, torch.Tensor], config: Mapping[str, Any] = CONFIG
) -> Path:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(held), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_shards(
    folder: Path, held: Mapping[str, torch.Tensor], config: Mapping[str, Any] = CONFIG, n: int = 4
) -> Path:
    """config.json, `n` shards with the tensors dealt out in turn, and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for k in range(n):
        shard = f"model-{k + 1:05}-of-{n:05}.safetensors"
        part = {name: held[name] for name in list(held)[k::n]}
        save_file(part, folder / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, shard)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    checkpoint = open_checkpoint(path)
    decoder = Decoder(checkpoint.spec, backend("eager", checkpoint.spec))
    load_parameters(decoder, checkpoint, "cpu", dtype)
    return decoder


def parameters(decoder: Decoder) -> dict[str, torch.Tensor]:
    return dict(decoder.named_parameters(remove_duplicate=False))


# -- GGUF ----------------------------------------------------------------------------------------

METADATA: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.key_length": HEAD_DIM,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.rope.freq_base": 10000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", maxsplit=3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_GGUF_PARTS[part]}.{kind}"


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Row by row, how a GGUF file stores q and k: the halves j and j + D/2 side by side."""
    width = len(rows) // heads
    order: list[int] = []
    for head in range(heads):
        for j in range(width // 2):
            order += [head * width + j, head * width + width // 2 + j]
    return rows[order]


def save_gguf(
    path: Path,
    held: Mapping[str, torch.Tensor],
    quantise: str = "F32",
    metadata: Mapping[str, Any] = METADATA,
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
) -> Path:
    """A GGUF file of the Hugging Face tensors `held`, its matrices stored as the type `quantise`."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add(writer, key, value)
    for name, tensor in held.items():
        for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            if part in name:
                tensor = interleaved(tensor, heads)
        kind = gguf.GGMLQuantizationType[quantise if tensor.ndim > 1 else "F32"]
        data = gguf.quantize(tensor.numpy(), kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case Sequence():
            writer.add_array(key, value)
