"""mixtral: a mixture of experts in every layer, weighed by the softmax of the chosen ones."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case(
        "mixtral",
        "mixtral",
        tiny(intermediate_size=22, head_dim=14, num_local_experts=5, num_experts_per_tok=2),
        seed=3,
    ),
    Case(
        "mixtral-window",
        "mixtral",
        one_kv_head(
            intermediate_size=20, num_local_experts=7, num_experts_per_tok=3, sliding_window=8
        ),
        seed=1,
    ),
    Case(
        "mixtral-tied",
        "mixtral",
        narrow_heads(
            intermediate_size=26,
            num_local_experts=4,
            num_experts_per_tok=1,
            tie_word_embeddings=True,
            rope_parameters=LINEAR,
        ),
        seed=2,
        draws=TIED_DRAWS,
    ),
    Case(
        "mixtral-fused",
        "mixtral",
        one_kv_head(intermediate_size=20, num_local_experts=4, num_experts_per_tok=2),
        seed=5,
        decode_tokens=4,
        fused=True,
    ),
)
