"""Real models, whose checkpoints are fetched."""

from __future__ import annotations

from conformance.cases.case import RealCase

REAL_CASES: tuple[RealCase, ...] = (
    RealCase(
        "smollm2-135m",
        model="smollm2-135m",
        text="The capital of France is",
        decode_tokens=6,
        watch=(
            "embed",
            "layers.*.after_attn",
            "layers.[0-9].out",
            "layers.[0-9][0-9].out",
            "layers.0.*",
            "layers.11.*",
            "layers.29.*",
            "cache.layers.0.*",
            "cache.layers.11.*",
            "cache.layers.29.*",
            "final_norm",
            "logits",
        ),
    ),
)
