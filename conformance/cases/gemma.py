"""gemma: norms of 1 + weight, embeddings times the root of the width, a tanh-gelu gate."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.cases.case import DRAWS, LINEAR, Case, Draw, narrow_heads, one_kv_head, tiny

_NORMS = {"*norm.weight": Draw(spread=0.3)}  # the 1 is the model's
#: What all Gemmas share: norms around their own 1, and where the head is tied embeddings that are small
#: after their product with the root of the width.
PLUS_ONE: Mapping[str, Draw] = {**DRAWS, **_NORMS}
PLUS_ONE_TIED: Mapping[str, Draw] = {**PLUS_ONE, "*embed_tokens.weight": Draw(spread=0.03)}

CASES: tuple[Case, ...] = (
    Case("gemma-mqa", "gemma", one_kv_head(), seed=2, draws=PLUS_ONE_TIED),
    Case(
        "gemma-bias",
        "gemma",
        narrow_heads(attention_bias=True, rope_parameters=LINEAR),
        seed=2,
        draws=PLUS_ONE_TIED,
    ),
    Case(
        "gemma-untied",
        "gemma",
        tiny(hidden_act="relu", tie_word_embeddings=False),
        seed=7,
        draws=PLUS_ONE,
    ),
)
