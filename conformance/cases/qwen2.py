"""qwen2: biases on queries, keys and values alone, a window from some layer on."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case("qwen2", "qwen2", tiny(head_dim=14), seed=3),
    Case(
        "qwen2-window",
        "qwen2",
        one_kv_head(
            num_hidden_layers=3, use_sliding_window=True, sliding_window=8, max_window_layers=1
        ),
        seed=1,
    ),
    Case(
        "qwen2-tied",
        "qwen2",
        narrow_heads(tie_word_embeddings=True, rope_parameters=LINEAR),
        seed=1,
        draws=TIED_DRAWS,
    ),
)
