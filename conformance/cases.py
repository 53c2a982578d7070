"""What is tested: tiny models that bite, as frozen values.

Every parameter is drawn at random and stored; sizes are all distinct so that a wrong transpose fails;
eps is large, so that a wrong one shows; prompts cross every boundary of a rope scaling. Numbers are
rounded to bfloat16 once, so that one truth serves every dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Draw:
    """How a parameter is drawn: centre + spread * normal(); `fan_in` divides by the root of its inputs."""

    centre: float = 0.0
    spread: float = 1.0
    fan_in: bool = False


#: First pattern that fits a parameter's Hugging Face name decides.
DRAWS: Mapping[str, Draw] = {
    "*norm.weight": Draw(centre=1.0, spread=0.3),
    "*.bias": Draw(spread=0.5),
    "*embed_tokens.weight": Draw(),
    "*": Draw(spread=1.5, fan_in=True),
}


@dataclass(frozen=True)
class Case:
    """A tiny model and the tokens it is run on. `config` holds what differs from transformers' default."""

    name: str
    family: str
    config: Mapping[str, Any]
    seed: int
    prompt_tokens: int = 21
    decode_tokens: int = 6
    draws: Mapping[str, Draw] = field(default_factory=lambda: DRAWS)
    watch: tuple[str, ...] = ("*",)
    kept_as: str = "float64"  # the trace's dtype


@dataclass(frozen=True)
class RealCase:
    """A real model on a real text; its checkpoint is fetched, and its golden covers `watch` alone."""

    name: str
    model: str
    text: str
    decode_tokens: int
    watch: tuple[str, ...] = ("*",)


def _llama(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": 67,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": None,
        "eos_token_id": None,
    } | changes


CASES: tuple[Case, ...] = (
    Case("llama-gqa", "llama", _llama(), seed=1),
    Case(
        "llama-rope-llama3",
        "llama",
        _llama(
            vocab_size=71,
            max_position_embeddings=128,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 2.0,  # of the 8 pairs one turns faster, one lies between
                "original_max_position_embeddings": 16,
            },
        ),
        seed=2,
        prompt_tokens=29,
    ),
    Case(
        "llama-rope-linear",
        "llama",
        _llama(
            head_dim=12,
            hidden_size=44,
            num_hidden_layers=2,
            rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        ),
        seed=3,
    ),
    Case(
        "llama-tied",
        "llama",
        _llama(
            hidden_size=42,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=20,
            num_hidden_layers=2,
            tie_word_embeddings=True,
        ),
        seed=7,
        # Small embeddings: otherwise a tied head answers with its own input. Gates and ups beyond what
        # any family clamps: real models have such activations.
        draws={
            "*gate_proj.weight": Draw(spread=6.0, fan_in=True),
            "*up_proj.weight": Draw(spread=6.0, fan_in=True),
            **DRAWS,
            "*embed_tokens.weight": Draw(spread=0.1),
        },
    ),
    Case(
        # Far from position 0, through many chunks: positions, masks and the cache in the long run.
        # Scores and weights would grow with the square of the length, so they are not kept.
        "long-llama",
        "llama",
        _llama(
            hidden_size=24,
            intermediate_size=20,
            num_attention_heads=3,
            num_key_value_heads=1,
            head_dim=10,
            num_hidden_layers=1,
            max_position_embeddings=1024,
        ),
        seed=46,  # of few without a near-tie in so many positions
        prompt_tokens=520,
        decode_tokens=4,
        watch=("*[!s]", "logits"),
        kept_as="float32",
    ),
    Case(
        "llama-bias",
        "llama",
        _llama(
            hidden_size=54,
            num_attention_heads=6,
            num_key_value_heads=3,
            num_hidden_layers=2,
            attention_bias=True,
            mlp_bias=True,
        ),
        seed=5,
    ),
)

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
