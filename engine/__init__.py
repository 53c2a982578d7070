"""A readable LLM inference engine, written by hand on PyTorch.

Names are imported when first used, so that the tokenizer alone never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.generate import BeamSearch as BeamSearch
    from engine.generate import DraftModel as DraftModel
    from engine.generate import Engine as Engine
    from engine.generate import PromptLookup as PromptLookup
    from engine.generate import SamplingParams as SamplingParams
    from engine.generate.structured import Choice as Choice
    from engine.generate.structured import Grammar as Grammar
    from engine.generate.structured import JsonObject as JsonObject
    from engine.generate.structured import JsonSchema as JsonSchema
    from engine.generate.structured import Regex as Regex
    from engine.mask import Custom as Custom
    from engine.tokenizer import Tokenizer as Tokenizer

_HOMES = {
    "BeamSearch": "engine.generate",
    "Choice": "engine.generate.structured",
    "Custom": "engine.mask",
    "DraftModel": "engine.generate",
    "Engine": "engine.generate",
    "Grammar": "engine.generate.structured",
    "JsonObject": "engine.generate.structured",
    "JsonSchema": "engine.generate.structured",
    "PromptLookup": "engine.generate",
    "Regex": "engine.generate.structured",
    "SamplingParams": "engine.generate",
    "Tokenizer": "engine.tokenizer",
}
__all__ = [
    "BeamSearch",
    "Choice",
    "Custom",
    "DraftModel",
    "Engine",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "PromptLookup",
    "Regex",
    "SamplingParams",
    "Tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
