"""Which parameters are quantised while a checkpoint is loaded, and what they are read from."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from engine.families.family import Rename, Tie, Verb
from engine.layers import Linear
from engine.moe import Experts, RouterLogits
from engine.quantised import Kind
from engine.weights.checkpoint import Checkpoint
from engine.weights.plan import Plan
from engine.weights.tensors import TensorSource


def maps(decoder: nn.Module, kind: Kind) -> Iterator[str]:
    """The weights of maps that the kind can stand for, by name; a router's stay as they are."""
    for path, module in decoder.named_modules():
        for leaf in _weights(module):
            if module.get_parameter(leaf).shape[-1] % kind.inputs == 0:
                yield f"{path}.{leaf}"


def _weights(module: nn.Module) -> tuple[str, ...]:
    match module:
        case RouterLogits():
            return ()
        case Linear():
            return ("weight",)
        case Experts():
            return "gate", "up", "down"
        case _:
            return ()


def untied(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """The plan without ties: a table and a head of the same tensor read it each for itself."""

    def own(verb: Verb) -> Verb:
        if not isinstance(verb, Tie):
            return verb
        if verb.source in checkpoint.tensors:
            return Rename(verb.source)
        there = plan[verb.target]
        return Rename(there.source) if isinstance(there, Tie) else there

    return {name: own(verb) for name, verb in plan.items()}


def unkept(source: TensorSource, name: str, dtype: torch.dtype, *, kept: bool) -> Tensor:
    """As `source.stored`, but the pages that were read go with the tensor, however it is arranged."""
    return source.stored(name, dtype, kept=False)
