"""deepseek_v3: latent attention, experts chosen by group with a correction, one shared besides."""

from __future__ import annotations

from typing import Any

from conformance.cases.case import DRAWS, TIED_DRAWS, YARN, Case, Draw, tiny

#: A correction that decides between experts and not by itself, and below 0, where scores are not.
_CORRECTED = {"*.e_score_correction_bias": Draw(centre=-1.0, spread=0.15), **DRAWS}


def _deepseek(**changes: Any) -> dict[str, Any]:
    """Sizes that are all distinct; keys, which no head shares, have no width of their own."""
    config = tiny(
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=96,
        q_lora_rank=22,
        kv_lora_rank=18,
        qk_nope_head_dim=10,
        qk_rope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=1,
        moe_intermediate_size=14,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        n_shared_experts=1,
    )
    del config["head_dim"]
    return config | changes


CASES: tuple[Case, ...] = (
    Case(
        "deepseek-v3",
        "deepseek_v3",
        _deepseek(rope_parameters={**YARN, "mscale": 0.7, "mscale_all_dim": 1.5}),
        seed=2,
        prompt_tokens=27,
        decode_tokens=4,
        draws=_CORRECTED,
    ),
    Case(
        "deepseek-v3-plain-queries",
        "deepseek_v3",
        _deepseek(
            vocab_size=61,
            hidden_size=34,
            q_lora_rank=None,
            attention_bias=True,
            rope_interleave=False,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            n_shared_experts=2,
            norm_topk_prob=False,
            routed_scaling_factor=1.7,
        ),
        seed=1,
    ),
    Case(
        # No dense layer; the magnitudes of cos and sin cancel, as in the released model.
        "deepseek-v3-all-experts",
        "deepseek_v3",
        _deepseek(
            vocab_size=71,
            hidden_size=32,
            num_attention_heads=4,
            num_key_value_heads=4,
            first_k_dense_replace=0,
            n_routed_experts=9,
            num_experts_per_tok=4,
            n_group=3,
            topk_group=2,
            attention_bias=True,
            tie_word_embeddings=True,
            rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        ),
        seed=12,
        prompt_tokens=27,
        decode_tokens=4,
        draws=TIED_DRAWS,
    ),
)
