"""Tiny models of all families for the public cases, made by transformers' own code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.cases import DRAWS, Case, Draw
from conformance.oracle import answers
from conformance.oracle.model import load
from conformance.oracle.tiny import tiny_checkpoint
from engine import Engine

IDS = [i * 7 % 50 for i in range(24)]
WINDOW = 5

_SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-2,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
_HEAD = {**_SIZES, "head_dim": 12}
_WINDOW = {**_HEAD, "sliding_window": WINDOW}
_GEMMA2 = {**_WINDOW, "query_pre_attn_scalar": 24}
_FIRST_SLIDES = {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 2}
#: What a model of each family is, besides transformers' defaults.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
        "vocab_size": 50,
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "n_positions": 64,
        "layer_norm_epsilon": 1e-2,
    },
    "llama": _HEAD,
    "mistral": _WINDOW,
    "qwen2": {**_WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": _HEAD,
    "gemma": _HEAD,
    "gemma2": {**_GEMMA2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**_GEMMA2, **_FIRST_SLIDES},
    "phi3": {**_SIZES, "sliding_window": WINDOW, "partial_rotary_factor": 0.5},
    "olmo2": _HEAD,
    "smollm3": {**_HEAD, "no_rope_layers": [1, 0]},
    "granite": {
        **_HEAD,
        "embedding_multiplier": 3.0,
        "logits_scaling": 0.4,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.2,
    },
    "mixtral": {**_HEAD, **_EXPERTS, "num_local_experts": 5},
    "qwen3_moe": {**_HEAD, **_EXPERTS, "num_experts": 5, "moe_intermediate_size": 20},
    "gpt_oss": {**_WINDOW, **_EXPERTS, **_FIRST_SLIDES, "num_local_experts": 5},
    "deepseek_v3": {
        **_SIZES,
        "num_key_value_heads": 4,
        "q_lora_rank": 14,
        "kv_lora_rank": 18,
        "qk_rope_head_dim": 6,
        "qk_nope_head_dim": 10,
        "v_head_dim": 8,
        "moe_intermediate_size": 20,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "first_k_dense_replace": 1,
    },
}
ROTARY = [family for family in FAMILIES if family != "gpt2"]

# Norms may be centred anywhere, and GPT-2 stores its matrices [in, out].
_DRAWS: Mapping[str, Draw] = {"*ln_*weight": Draw(centre=1.0, spread=0.3), **DRAWS}


def save(folder: Path, family: str, changes: Mapping[str, Any]) -> Path:
    """A folder with such a model, every number of it drawn, as transformers writes it."""
    config = {**FAMILIES[family], **changes}
    tiny_checkpoint(Case("case", family, config, seed=3, draws=_DRAWS), folder)
    return folder


class Models:
    """The models below a folder, each saved and loaded once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reference = cache(load)
        self.engine = cache(lambda folder, dtype="float32": Engine.load(folder, dtype=dtype))
        self._folders: dict[str, Path] = {}

    def folder(self, family: str, **changes: Any) -> Path:
        name = f"{family} {sorted(changes.items())}"
        if name not in self._folders:
            folder = self.root / f"{family}-{len(self._folders)}"
            self._folders[name] = save(folder, family, changes)
        return self._folders[name]

    def expected(self, folder: Path, attention: str = "eager") -> Tensor:
        """The reference's logits of IDS in float32."""
        return answers.logits(self.reference(folder, torch.float32), IDS, attention)


def differ(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((got - expected).abs().max() / expected.abs().max())
