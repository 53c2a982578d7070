"""The reference's rotary tables, from its own modules, for any positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.oracle.configs import skeleton

Table = tuple[Tensor, Tensor]


def module_of(config: Mapping[str, Any]) -> Any:
    """The rotary module of a config.json's model, as it is before the first forward pass."""
    model = skeleton(config)
    return type(model.base_model.rotary_emb)(config=model.config)


def tables(rotary: Any, positions: Tensor, dtype: torch.dtype) -> list[Table]:
    """cos and sin of each layer for the tokens at `positions` [T], [T, D/2] each, in a model of `dtype`.

    Frequencies that follow the length are those of a sequence that ends with the last of them.
    """
    config = rotary.config
    by_kind = isinstance(rotary.rope_type, dict)
    kinds = config.layer_types if by_kind else [None] * config.num_hidden_layers
    x = torch.empty(1, dtype=dtype)
    made: dict[str | None, Table] = {}
    for kind in set(kinds):
        cos, sin = rotary(x, positions[None], *([kind] if by_kind else []))
        made[kind] = _once(cos[0]), _once(sin[0])
    return [made[kind] for kind in kinds]


def _once(table: Tensor) -> Tensor:
    """Most models write a pair's number twice, for both of its dimensions."""
    first, second = table.chunk(2, dim=-1)
    return first if torch.equal(first, second) else table
