"""A config per family in both spellings, and the spec of one with changes.

configs.json has it as transformers 5.24's `save_pretrained` wrote it, and the same model as files on
the hub say it, with the keys that such files have besides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.families import read_spec
from engine.spec import GroupedQueryAttention, ModelSpec, Rope

CONFIGS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "configs.json").read_text()
)
each_family = pytest.mark.parametrize("family", CONFIGS)


def spec_of(family: str, without: str = "", spelling: str = "hub", **changes: Any) -> ModelSpec:
    """The spec of a family's config after changes; `without` names keys that it lacks."""
    config = {**CONFIGS[family][spelling], **changes}
    for key in without.split():
        config.pop(key, None)
    return read_spec(config)[1]


def attention(spec: ModelSpec, layer: int = 0) -> GroupedQueryAttention:
    attn = spec.layers[layer].attn
    assert isinstance(attn, GroupedQueryAttention)
    return attn


def rope(spec: ModelSpec, layer: int = 0) -> Rope:
    turned = attention(spec, layer).rope
    assert turned is not None
    return turned


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attn.window for layer in spec.layers]
