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
    RealCase(
        # Layer 0 sees a window, layer 5 all keys, each with a rope of its own.
        "gemma3-270m",
        model="gemma3-270m",
        text="The capital of France is",
        decode_tokens=1,
        watch=(
            "embed",
            "layers.0.attn.*",
            "layers.5.*",
            "layers.[1379].out",
            "layers.1[1357].out",
            "cache.layers.0.*",
            "cache.layers.5.*",
            "final_norm",
            "logits",
        ),
        random_logits=100,
    ),
)
