"""qwen3: norms of each query and key head."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case("qwen3", "qwen3", tiny(), seed=4),
    Case(
        "qwen3-bias",
        "qwen3",
        one_kv_head(attention_bias=True, tie_word_embeddings=True),
        seed=1,
        draws=TIED_DRAWS,
    ),
    Case(
        "qwen3-window",
        "qwen3",
        narrow_heads(
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=2,
            rope_parameters=LINEAR,
        ),
        seed=2,
    ),
)
