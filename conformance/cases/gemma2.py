"""gemma2: norms before and after, softcaps on scores and logits, windows in every other layer."""

from __future__ import annotations

from conformance.cases.case import LINEAR, Case, narrow_heads, one_kv_head, tiny
from conformance.cases.gemma import PLUS_ONE, PLUS_ONE_TIED

CASES: tuple[Case, ...] = (
    Case(
        "gemma2",
        "gemma2",
        tiny(
            num_hidden_layers=3,
            query_pre_attn_scalar=24,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=4.0,
        ),
        seed=1,
        draws=PLUS_ONE_TIED,
    ),
    Case(
        "gemma2-full-first",
        "gemma2",
        one_kv_head(
            query_pre_attn_scalar=30,
            layer_types=["full_attention", "sliding_attention"],
            sliding_window=8,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            attention_bias=True,
        ),
        seed=2,
        draws=PLUS_ONE_TIED,
    ),
    Case(
        "gemma2-untied",
        "gemma2",
        narrow_heads(
            query_pre_attn_scalar=5,
            sliding_window=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=None,
            hidden_activation="gelu",
            tie_word_embeddings=False,
            rope_parameters=LINEAR,
        ),
        seed=4,
        draws=PLUS_ONE,
    ),
)
