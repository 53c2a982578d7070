"""Fills a decoder's parameters from a checkpoint, one at a time, as the checked plan says.

Tensors of another dtype are converted; what only has to be cut or turned, and already has the dtype
asked for, stays mapped to its file (on a CPU), so it is not copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from engine.families.family import Tie
from engine.progress import byte_bar
from engine.quantised import KINDS
from engine.weights.arrange import arrange, sources
from engine.weights.checkpoint import Checkpoint
from engine.weights.plan import Plan, in_layout, planned
from engine.weights.quantise import maps, unkept, untied

# Below this size reading takes less time than it takes to look at a bar.
_WORTH_A_BAR = 1 << 28


def load_parameters(
    decoder: nn.Module,
    checkpoint: Checkpoint,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: bool = False,
    quantization: str | None = None,
) -> None:
    """Gives every parameter of `decoder` (on the meta device) its values, frozen, on `device`.

    They are in `dtype`, but for those that the family's layout keeps in float32. With a `quantization`
    the weights of maps, from float32, are quantised as they are read, but for those whose inputs are not
    of a number that the kind can do; so never more than one of them is there in full.
    Raises ModelFileError naming parameters and tensors that are missing, left over, of the wrong
    shape or not floating point. Shapes are compared before anything is read.
    """
    plan = planned(decoder, checkpoint)
    kind, quantised = None, frozenset[str]()
    if quantization is not None:
        kind = KINDS[quantization]
        plan, quantised = untied(plan, checkpoint), frozenset(maps(decoder, kind))
    stored = _stored(plan, checkpoint)
    modules = dict(decoder.named_modules())
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    total = sum(parameters[name].numel() for name in stored) * dtype.itemsize
    done = 0
    show = progress and total >= _WORTH_A_BAR
    with byte_bar(f"loading {checkpoint.path.name}", total, show=show) as advance:
        for name, verb in stored.items():
            done += parameters[name].numel() * dtype.itemsize
            if kind is not None and name in quantised:
                weight = arrange(verb, partial(unkept, checkpoint.source), torch.float32)
                _set(modules, name, kind.quantise(weight.to(device), dtype))
            else:
                wanted = _dtype_of(name, checkpoint, dtype)
                values = arrange(verb, checkpoint.source.stored, wanted)
                _set(modules, name, nn.Parameter(values.to(device), requires_grad=False))
            advance(done)
    for name, verb in plan.items():
        if isinstance(verb, Tie) and verb.target in stored:
            there = decoder.get_parameter(verb.target)
            # Two that differ stay two whatever the config says, as in transformers 5.24 (`tie_weights`):
            # the file has the last word. They are compared in the dtype asked for.
            if name not in stored or torch.equal(decoder.get_parameter(name), there):
                _set(modules, name, there)


def parameter_bytes(decoder: nn.Module, checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """What the parameters of `decoder` (on the meta device) will take, those that are tied once.

    Raises ModelFileError as `load_parameters` does.
    """
    counted: dict[str, int] = {}
    for name, verb in _stored(planned(decoder, checkpoint), checkpoint).items():
        if not (isinstance(verb, Tie) and verb.target in counted):
            itemsize = _dtype_of(name, checkpoint, dtype).itemsize
            counted[name] = decoder.get_parameter(name).numel() * itemsize
    return sum(counted.values())


def _stored(plan: Plan, checkpoint: Checkpoint) -> Plan:
    """What of the plan the checkpoint holds tensors for; the rest is tied to that."""
    tensors = checkpoint.tensors
    return {n: verb for n, verb in plan.items() if all(s in tensors for s in sources(verb))}


def _dtype_of(name: str, checkpoint: Checkpoint, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if in_layout(name) in checkpoint.layout.float32 else dtype


def _set(modules: Mapping[str, nn.Module], name: str, value: nn.Parameter | nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    if isinstance(value, nn.Module):  # which torch puts in no parameter's place
        delattr(modules[owner], leaf)
    setattr(modules[owner], leaf, value)
