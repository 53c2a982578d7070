"""gpt_oss: attention sinks, clamped SwiGLU experts stored [in, out], YaRN untruncated."""

from __future__ import annotations

from conformance.cases.case import (
    DRAWS,
    TIED_DRAWS,
    YARN,
    Case,
    Draw,
    narrow_heads,
    one_kv_head,
    tiny,
)

#: Gates and ups lie well beyond the clamps, sinks compete with the scores.
_OWN = {
    "*.experts.gate_up_proj": Draw(spread=6.0, inputs=-2),
    "*.experts.down_proj": Draw(spread=1.5, inputs=-2),
    "*.sinks": Draw(spread=2.0),
}

CASES: tuple[Case, ...] = (
    Case(
        "gpt-oss",
        "gpt_oss",
        tiny(
            intermediate_size=22,
            max_position_embeddings=96,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=8,
            rope_parameters={**YARN, "truncate": False},
        ),
        seed=2,
        prompt_tokens=27,
        decode_tokens=4,
        draws={**_OWN, **DRAWS},
    ),
    Case(
        "gpt-oss-full-first",
        "gpt_oss",
        one_kv_head(
            intermediate_size=20,
            num_local_experts=6,
            num_experts_per_tok=3,
            layer_types=["full_attention", "sliding_attention"],
            sliding_window=8,
            attention_bias=False,
        ),
        seed=3,
        draws={**_OWN, **DRAWS},
    ),
    Case(
        "gpt-oss-limit",
        "gpt_oss",
        narrow_heads(
            intermediate_size=26,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            swiglu_alpha=1.1,
            swiglu_limit=3.0,
            tie_word_embeddings=True,
        ),
        seed=6,
        draws={**_OWN, **TIED_DRAWS},
    ),
    Case(
        # As it is released; 32 numbers of a row share a power of two, so sizes are multiples of 32.
        "gpt-oss-mxfp4",
        "gpt_oss",
        tiny(
            hidden_size=64,
            intermediate_size=96,
            head_dim=14,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
        ),
        seed=1,
        draws={**_OWN, **DRAWS},
        microscaled=True,
    ),
)
