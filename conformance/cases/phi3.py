"""phi3: fused projections, a rope of part of each head, LongRoPE."""

from __future__ import annotations

from typing import Any

from conformance.cases.case import TIED_DRAWS, Case, narrow_heads, one_kv_head, tiny


def _longrope(original: int, **changes: Any) -> dict[str, Any]:
    """The keys of a LongRoPE of six pairs and `original` positions, which phi3 writes twice."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "original_max_position_embeddings": original,
        "short_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0],
        "long_factor": [1.5, 2.0, 4.0, 8.0, 16.0, 24.0],
    }
    return {"original_max_position_embeddings": original, "rope_parameters": rope | changes}


CASES: tuple[Case, ...] = (
    Case(
        "phi3-partial",
        "phi3",
        tiny(
            sliding_window=8,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        ),
        seed=3,
    ),
    Case(
        # Prompt and answer stay within the original context: the short divisors throughout.
        "phi3-longrope-short",
        "phi3",
        one_kv_head(head_dim=12, max_position_embeddings=256, **_longrope(64)),
        seed=3,
    ),
    Case(
        # The prompt is beyond the original context: the long divisors from the first token on.
        "phi3-longrope-long",
        "phi3",
        narrow_heads(
            hidden_size=96,
            head_dim=16,
            tie_word_embeddings=True,
            **_longrope(16, partial_rotary_factor=0.75, attention_factor=1.3),
        ),
        seed=4,
        draws=TIED_DRAWS,
        whole_prompts=True,
    ),
)
