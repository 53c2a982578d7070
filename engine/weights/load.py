"""Fills a decoder's parameters from a checkpoint, one tensor at a time, strict in both directions.

Every parameter needs a tensor of its shape and every tensor a parameter, save those that the
family's layout lists as holding none. Tensors of another dtype are converted; one that already has
the dtype asked for stays mapped to its file (on a CPU), so it is not copied.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from engine.errors import LockstepError, ModelFileError
from engine.families.family import Deinterleave, Layout, Rename, Tie, Verb
from engine.files import few
from engine.progress import byte_bar
from engine.spec import ModelSpec
from engine.weights.checkpoint import Checkpoint

_LAYER = re.compile(r"^layers\.(\d+)\.")
# Below this size reading takes less time than it takes to look at a bar.
_WORTH_A_BAR = 1 << 28


def load_parameters(
    decoder: nn.Module,
    checkpoint: Checkpoint,
    device: torch.device | str,
    dtype: torch.dtype,
    progress: bool = False,
) -> None:
    """Gives every parameter of `decoder` (on the meta device) its values, frozen, on `device`.

    Raises ModelFileError naming parameters and tensors that are missing, left over, of the wrong
    shape or not floating point. Shapes are compared before anything is read.
    """
    layout = checkpoint.layout(checkpoint.spec)
    rules = _rules(decoder, layout, checkpoint.spec)
    _check(decoder, checkpoint, rules, layout.ignored)
    stored = {name: rule for name, rule in rules.items() if rule.source in checkpoint.tensors}
    total = sum(checkpoint.tensors[rule.source].nbytes for rule in stored.values())
    done = 0
    show = progress and total >= _WORTH_A_BAR
    with byte_bar(f"loading {checkpoint.path.name}", total, show=show) as advance:
        for name, rule in stored.items():
            values = _arrange(checkpoint.read(rule.source, dtype), rule)
            _set(decoder, name, nn.Parameter(values.to(device), requires_grad=False))
            done += checkpoint.tensors[rule.source].nbytes
            advance(done)
    for name, rule in rules.items():
        if isinstance(rule.verb, Tie) and rule.verb.target in stored:
            _tie(decoder, name, rule.verb.target, both=name in stored)


@dataclass(frozen=True)
class _Rule:
    """A verb for one parameter, the layer's number filled in; `heads` where the verb needs it."""

    verb: Verb
    source: str
    heads: int


def _rules(decoder: nn.Module, layout: Layout, spec: ModelSpec) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    for name, _ in decoder.named_parameters(remove_duplicate=False):
        found = _LAYER.match(name)
        verb = layout.verbs.get(_LAYER.sub("layers.{i}.", name))
        if verb is None:
            raise LockstepError(f"the family's weight layout has no rule for the parameter {name}")
        source = verb.source.replace("{i}", found[1]) if found else verb.source
        heads = 0
        if isinstance(verb, Deinterleave) and found:
            attn = spec.layers[int(found[1])].attn
            heads = attn.n_heads if verb.heads == "n_heads" else attn.n_kv_heads
        rules[name] = _Rule(verb, source, heads)
    return rules


def _check(
    decoder: nn.Module, checkpoint: Checkpoint, rules: dict[str, _Rule], ignored: tuple[str, ...]
) -> None:
    """Everything that can be wrong without reading a tensor, said in one sentence."""
    tensors = checkpoint.tensors
    missing, misshapen = [], []
    for name, rule in rules.items():
        wanted = tuple(decoder.get_parameter(name).shape)
        held = tensors.get(rule.source)
        if held is None:
            tied = isinstance(rule.verb, Tie) and rules[rule.verb.target].source in tensors
            if not tied:
                missing.append(f"{rule.source} (for {name})")
        elif held.shape != wanted:
            misshapen.append(f"{rule.source} is {list(held.shape)}, but {name} is {list(wanted)}")
    used = {rule.source for rule in rules.values()}
    extra = [
        name
        for name in tensors
        if name not in used and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    problems = [
        f"{what}: {few(names)}"
        for what, names in (
            ("missing tensors", missing),
            ("wrong shapes", misshapen),
            ("tensors that this model has no parameter for", extra),
        )
        if names
    ]
    if problems:
        raise ModelFileError(
            f"{checkpoint.path} does not hold the model that its config describes; "
            + "; ".join(problems)
        )


def _arrange(tensor: torch.Tensor, rule: _Rule) -> torch.Tensor:
    match rule.verb:
        case Rename() | Tie():
            return tensor
        case Deinterleave():
            return deinterleave(tensor, rule.heads)


def deinterleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows [heads * D, ...] of each head from rope pairs (2j, 2j+1) to halves (j, j + D/2)."""
    paired = rows.view(heads, -1, 2, *rows.shape[1:])  # [heads, D/2, 2, ...]
    return paired.transpose(1, 2).reshape(rows.shape)


def _tie(decoder: nn.Module, name: str, target: str, *, both: bool) -> None:
    """Shares the parameter `target`, unless the file holds both and they differ.

    Two that differ stay two whatever the config says, as in transformers 5.24 (`tie_weights`): the
    file has the last word. They are compared in the dtype asked for.
    """
    there = decoder.get_parameter(target)
    if not both or torch.equal(decoder.get_parameter(name), there):
        _set(decoder, name, there)


def _set(decoder: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(decoder.get_submodule(owner), leaf, parameter)
