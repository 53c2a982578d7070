"""gemma3_text: a rope of their own for layers with and without a window, norms of queries and keys."""

from __future__ import annotations

from conformance.cases.case import Case, narrow_heads, one_kv_head, tiny
from conformance.cases.gemma import PLUS_ONE, PLUS_ONE_TIED

_NEAR = {"rope_type": "default", "rope_theta": 100.0}
_FAR = {"rope_type": "default", "rope_theta": 10000.0}

CASES: tuple[Case, ...] = (
    Case(
        "gemma3",
        "gemma3_text",
        tiny(
            num_hidden_layers=3,
            query_pre_attn_scalar=24,
            sliding_window=8,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters={"sliding_attention": _NEAR, "full_attention": _FAR},
        ),
        seed=5,
        draws=PLUS_ONE_TIED,
    ),
    Case(
        "gemma3-linear",
        "gemma3_text",
        one_kv_head(
            query_pre_attn_scalar=30,
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention"],
            final_logit_softcapping=4.0,
            rope_parameters={
                "sliding_attention": _NEAR,
                "full_attention": {**_FAR, "rope_type": "linear", "factor": 4.0},
            },
        ),
        seed=4,
        draws=PLUS_ONE_TIED,
    ),
    Case(
        "gemma3-untied",
        "gemma3_text",
        narrow_heads(
            query_pre_attn_scalar=5,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            attn_logit_softcapping=2.0,  # which the reference does not read
            attention_bias=True,
            tie_word_embeddings=False,
            rope_parameters={"sliding_attention": _FAR, "full_attention": _NEAR},
        ),
        seed=1,
        draws=PLUS_ONE,
    ),
)
