"""A tiny config of each family that has what the family has: windows, experts, latents, layers without rope."""

from __future__ import annotations

from typing import Any

V, DIM, FFN, H, K, D = 67, 40, 56, 4, 2, 16
EXPERTS, CHOSEN, EXPERT_FFN = 6, 2, 24
Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 26, 20, 12, 8, 10

PLAIN = {
    "vocab_size": V,
    "hidden_size": DIM,
    "intermediate_size": FFN,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": D,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "pad_token_id": None,
}
WINDOWED = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
CHOICE = {"num_experts_per_tok": CHOSEN, "moe_intermediate_size": EXPERT_FFN}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": PLAIN,
    "mistral": PLAIN | {"sliding_window": 4},
    "qwen2": PLAIN,
    "qwen3": PLAIN,
    "gemma": PLAIN,
    "gemma2": PLAIN | WINDOWED | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    "gemma3_text": PLAIN
    | WINDOWED
    | {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
    },
    "phi3": PLAIN,
    "olmo2": PLAIN,
    "smollm3": PLAIN | {"no_rope_layers": [1, 0]},
    "granite": PLAIN
    | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5},
    "mixtral": PLAIN | {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN},
    "qwen3_moe": PLAIN | CHOICE | {"num_experts": EXPERTS, "mlp_only_layers": [0]},
    "gpt_oss": PLAIN
    | WINDOWED
    | {
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "truncate": False,
        },
    },
    "deepseek_v3": {k: v for k, v in PLAIN.items() if k != "head_dim"}
    | CHOICE
    | {
        "num_key_value_heads": H,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "n_routed_experts": EXPERTS,
        "n_group": 3,
        "topk_group": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gpt2": {"vocab_size": V, "n_embd": DIM, "n_layer": 2, "n_head": H, "n_inner": FFN},
}
