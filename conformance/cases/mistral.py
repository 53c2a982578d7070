"""mistral: a llama with a window in every layer, or in none."""

from __future__ import annotations

from conformance.cases.case import LINEAR, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case("mistral-window", "mistral", tiny(head_dim=14, sliding_window=8), seed=2),
    Case("mistral-full", "mistral", one_kv_head(sliding_window=None), seed=3),
    Case(
        # Heads of the width that follows from the model's; a chunk is longer than the window.
        "mistral-derived",
        "mistral",
        narrow_heads(hidden_size=60, head_dim=None, sliding_window=3, rope_parameters=LINEAR),
        seed=2,
        prompt_tokens=23,
    ),
)
