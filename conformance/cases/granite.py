"""granite: multipliers on embeddings, scores, residual branches and logits."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case(
        "granite",
        "granite",
        tiny(
            head_dim=14,
            embedding_multiplier=3.0,
            attention_multiplier=0.1,
            residual_multiplier=0.6,
            logits_scaling=2.3,
        ),
        seed=3,
    ),
    Case(
        "granite-bias",
        "granite",
        one_kv_head(
            attention_bias=True,
            mlp_bias=True,
            embedding_multiplier=0.7,
            attention_multiplier=0.4,
            residual_multiplier=1.4,
            logits_scaling=0.3,
            rope_parameters=LINEAR,
        ),
        seed=2,
    ),
    Case(
        "granite-tied",
        "granite",
        narrow_heads(
            num_hidden_layers=3,
            tie_word_embeddings=True,
            embedding_multiplier=6.0,
            attention_multiplier=0.2,
            residual_multiplier=0.8,
            logits_scaling=4.0,
        ),
        seed=5,
        draws=TIED_DRAWS,
    ),
)
