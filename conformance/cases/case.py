"""What a case is: a tiny model that bites, or a real one, as a frozen value.

A tiny model's every parameter is drawn at random and stored; sizes are all distinct so that a wrong
transpose fails; eps is large, so that a wrong one shows; prompts are longer than every window and cross
every boundary of a rope scaling. Numbers are rounded to bfloat16 once, so that one truth serves every
dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Draw:
    """How a parameter is drawn: centre + spread * normal().

    `inputs` is the axis along which a product with it sums, and the root of that axis divides.
    """

    centre: float = 0.0
    spread: float = 1.0
    inputs: int | None = None


#: First pattern that fits the Hugging Face name of a parameter or stored buffer decides.
DRAWS: Mapping[str, Draw] = {
    "*norm.weight": Draw(centre=1.0, spread=0.3),
    "*bias": Draw(spread=0.5),
    "*embed_tokens.weight": Draw(),
    "*": Draw(spread=1.5, inputs=-1),
}

#: Embeddings of a tied head are small: otherwise it answers with its own input.
TIED_DRAWS: Mapping[str, Draw] = {**DRAWS, "*embed_tokens.weight": Draw(spread=0.1)}


@dataclass(frozen=True)
class Case:
    """A tiny model and the tokens it is run on. `config` holds what differs from transformers' default.

    `whole_prompts`: the model's frequencies follow the tokens in view, so a prompt in chunks would be
    another computation than the golden's.
    """

    name: str
    family: str
    config: Mapping[str, Any]
    seed: int
    prompt_tokens: int = 21
    decode_tokens: int = 6
    draws: Mapping[str, Draw] = field(default_factory=lambda: DRAWS)
    watch: tuple[str, ...] = ("*",)
    kept_as: str = "float64"  # the trace's dtype
    whole_prompts: bool = False


@dataclass(frozen=True)
class RealCase:
    """A real model on a real text; its checkpoint is fetched, and its golden covers `watch` alone.

    With `random_logits` only the best logits of each position and so many at random are kept.
    """

    name: str
    model: str
    text: str
    decode_tokens: int
    watch: tuple[str, ...] = ("*",)
    random_logits: int | None = None


def tiny(**changes: Any) -> dict[str, Any]:
    """The config keys that most families share, for a model of three small layers, less what changes."""
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
