"""qwen3_moe: qwen3 with experts, their weights normalised or not, in some of its layers."""

from __future__ import annotations

from conformance.cases.case import TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case(
        "qwen3-moe",
        "qwen3_moe",
        tiny(
            moe_intermediate_size=18,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=True,
        ),
        seed=4,
    ),
    Case(
        # Layers 1 and 3 would have experts, and 3 is named as dense.
        "qwen3-moe-step",
        "qwen3_moe",
        one_kv_head(
            num_hidden_layers=4,
            moe_intermediate_size=18,
            num_experts=5,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            attention_bias=True,
        ),
        seed=3,
        decode_tokens=4,
    ),
    Case(
        "qwen3-moe-window",
        "qwen3_moe",
        narrow_heads(
            moe_intermediate_size=22,
            num_experts=7,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            mlp_only_layers=[0],
            use_sliding_window=True,
            sliding_window=8,
            tie_word_embeddings=True,
        ),
        seed=6,
        draws=TIED_DRAWS,
    ),
)
