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

    `kept_as` is the trace's dtype: float64 where not even the truth's own rounding is to count, at twice
    the size. `whole_prompts`: the model's frequencies follow the tokens in view, so a prompt in chunks
    would be another computation than the golden's. `microscaled`: experts are stored in MXFP4; `fused`:
    as transformers holds them, gates and ups of all of them in one tensor.
    """

    name: str
    family: str
    config: Mapping[str, Any]
    seed: int
    prompt_tokens: int = 21
    decode_tokens: int = 6
    draws: Mapping[str, Draw] = field(default_factory=lambda: DRAWS)
    watch: tuple[str, ...] = ("*",)
    kept_as: str = "float32"
    whole_prompts: bool = False
    microscaled: bool = False
    fused: bool = False


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


#: A rope scaling that every position feels.
LINEAR: Mapping[str, Any] = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}

#: Pairs on either side of the ramp and on it; a prompt of 27 is beyond the original context.
YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 30.0,
    "factor": 4.0,
    "beta_fast": 1.2,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 24,
}


def tiny(**changes: Any) -> dict[str, Any]:
    """A config of two small layers by the keys that most families share, less what changes."""
    return {
        "vocab_size": 67,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    } | changes


def one_kv_head(**changes: Any) -> dict[str, Any]:
    """Another such config, whose three query heads share one of keys and values."""
    sizes = {"vocab_size": 61, "hidden_size": 36, "intermediate_size": 44}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 14}
    return tiny(**sizes, **heads) | changes


def narrow_heads(**changes: Any) -> dict[str, Any]:
    """Another such config, with six query heads wider together than the model."""
    sizes = {"vocab_size": 71, "hidden_size": 30, "intermediate_size": 46}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
    return tiny(**sizes, **heads) | changes
