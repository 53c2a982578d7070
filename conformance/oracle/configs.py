"""What follows from a config alone in transformers: its file, and its model's tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def written(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that transformers writes of a model with that config, in its own spelling."""
    made: dict[str, Any] = json.loads(AutoConfig.for_model(family, **config).to_json_string())
    return made


def skeleton(config: Mapping[str, Any]) -> Any:
    """The model of a config.json with shapes and no numbers."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
