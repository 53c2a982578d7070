"""The rotary embedding of a config.json: the hub's rope_theta and rope_scaling, or rope_parameters.

Precedence and defaults are transformers 5's (`modeling_rope_utils`), where a scaling's attention
factor and missing factors follow from the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.families.config import Config
from engine.spec import (
    DynamicScaling,
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

_ORIGINAL_CONTEXT = "original_max_position_embeddings"
# A scaling of frequencies, and what cos and sin are multiplied by.
_Scaled = tuple[RopeScaling | None, float]
Types = Mapping[str, Callable[[Config, int], _Scaled]]


def rope_table(
    config: Config,
    theta: float = 10000.0,
    default: Mapping[str, Any] | None = None,
    original_context: int | None = None,
) -> Config:
    """The rope's keys, wherever the file has them, as one table.

    `default` stands for a table that is absent. `theta` and `original_context` are what a family's
    config class in transformers has where the file says nothing.
    """
    older, newer = config.table("rope_scaling"), config.table("rope_parameters")
    config.read |= {"rope_theta", "partial_rotary_factor", _ORIGINAL_CONTEXT}
    top = config.values
    given = newer.values if top.get("rope_parameters") is not None else default or {}
    values = {
        "rope_theta": theta if top.get("rope_theta") is None else top["rope_theta"],
        "partial_rotary_factor": top.get("partial_rotary_factor"),
        # The older name wins where both are filled.
        **(older.values or given),
    }
    # Beside the table, theta and factor are defaults, but the original context has priority.
    if (original := top.get(_ORIGINAL_CONTEXT, original_context)) is not None:
        values[_ORIGINAL_CONTEXT] = original
    return Config(values, config.family)


def rope_of(
    table: Config,
    head_dim: int,
    context: int,
    types: Types | None = None,
    partial: bool = False,
    interleaved: bool = False,
    in_float32: bool = False,
) -> Rope:
    """The rope of a table, every key of which must be understood.

    `context` is max_position_embeddings, `partial` whether the family turns part of a head.
    """
    theta = table.number("rope_theta")
    if not partial:
        table.must_be("partial_rotary_factor", 1.0)
    part = table.number("partial_rotary_factor", 1.0)
    if not 0 < part <= 1:
        raise ModelFileError(f"config.json: partial_rotary_factor must be in (0, 1], got {part}")
    types = types or TYPES
    if "divisors" in table.values:  # not Hugging Face's: how the GGUF reader hands tables on
        types = {**types, "gguf": _divisors}
    spelling = "rope_type" if "rope_type" in table.values else "type"
    scaling, magnitude = table.one_of(spelling, types, "default")(table, context)
    table.finish(frozenset({"type", _ORIGINAL_CONTEXT}), where="the rope parameters of config.json")
    return Rope(
        dim=int(head_dim * part),
        theta=theta,
        scaling=scaling,
        magnitude=magnitude,
        interleaved=interleaved,
        in_float32=in_float32,
    )


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature: 0.1 * mscale * ln(factor) + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _unscaled(table: Config, context: int) -> _Scaled:
    return None, 1.0


def _linear(table: Config, context: int) -> _Scaled:
    return LinearScaling(factor=table.number("factor")), 1.0


def _dynamic(table: Config, context: int) -> _Scaled:
    return DynamicScaling(factor=table.number("factor"), context=context), 1.0


def _yarn(table: Config, context: int) -> _Scaled:
    original = table.integer(_ORIGINAL_CONTEXT, context)
    factor = table.number("factor", context / original)
    mscale = table.optional_number("mscale")
    mscale_all_dim = table.optional_number("mscale_all_dim")
    magnitude = table.optional_number("attention_factor")
    if magnitude is None:
        if mscale and mscale_all_dim:
            magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
        else:
            magnitude = yarn_magnitude(factor)
    scaling = YarnScaling(
        factor=factor,
        original_context=original,
        beta_fast=table.number("beta_fast", 32.0) or 32.0,
        beta_slow=table.number("beta_slow", 1.0) or 1.0,
        truncate=table.flag("truncate", True),
    )
    return scaling, magnitude


def _longrope(table: Config, context: int) -> _Scaled:
    original = table.integer(_ORIGINAL_CONTEXT, context)
    factor = table.number("factor", context / original)
    magnitude = table.optional_number("attention_factor")
    if magnitude is None:
        if factor > 1 and original == 1:
            raise ModelFileError(f"config.json: {_ORIGINAL_CONTEXT} must be above 1 for longrope")
        stretched = factor > 1
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if stretched else 1.0
    scaling = LongRopeScaling(
        short=table.numbers("short_factor"),
        long=table.numbers("long_factor"),
        original_context=original,
    )
    return scaling, magnitude


def _llama3(table: Config, context: int) -> _Scaled:
    scaling = Llama3Scaling(
        factor=table.number("factor"),
        low_freq_factor=table.number("low_freq_factor"),
        high_freq_factor=table.number("high_freq_factor"),
        original_context=table.integer(_ORIGINAL_CONTEXT, context),
    )
    return scaling, 1.0


def _divisors(table: Config, context: int) -> _Scaled:
    return FrequencyDivisors(table.numbers("divisors")), 1.0


TYPES: Types = {
    "default": _unscaled,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
#: The one scaling of Phi-3, under the names that its files have had for it.
LONGROPE_TYPES: Types = {
    "default": _unscaled,
    "longrope": _longrope,
    "su": _longrope,
    "yarn": _longrope,
}
