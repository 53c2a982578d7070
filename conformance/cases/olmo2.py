"""olmo2: norms after attention and MLP alone, queries and keys normed over all heads at once."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case("olmo2", "olmo2", tiny(head_dim=14), seed=3),
    Case(
        "olmo2-bias",
        "olmo2",
        narrow_heads(attention_bias=True, rope_parameters=LINEAR),
        seed=1,
    ),
    Case(
        "olmo2-tied",
        "olmo2",
        one_kv_head(num_hidden_layers=3, tie_word_embeddings=True),
        seed=8,
        draws=TIED_DRAWS,
    ),
)
