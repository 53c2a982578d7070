"""smollm3: some layers without rope, which alone have the window."""

from __future__ import annotations

from conformance.cases.case import LINEAR, TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny

CASES: tuple[Case, ...] = (
    Case(
        "smollm3",
        "smollm3",
        tiny(num_hidden_layers=3, head_dim=14, no_rope_layers=[1, 0, 1]),
        seed=3,
        draws=TIED_DRAWS,
    ),
    Case(
        "smollm3-window",
        "smollm3",
        one_kv_head(
            num_hidden_layers=3,
            no_rope_layer_interval=2,
            use_sliding_window=True,
            sliding_window=8,
            tie_word_embeddings=False,
        ),
        seed=3,
    ),
    Case(
        "smollm3-bias",
        "smollm3",
        narrow_heads(
            no_rope_layers=[0, 1],
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
            rope_parameters=LINEAR,
        ),
        seed=2,
    ),
)
