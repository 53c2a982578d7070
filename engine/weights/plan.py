"""Which tensors become which parameter, checked in both directions before anything is read.

Every parameter needs tensors of the right shape, and every tensor must be used to its last row, save
those that the family's layout lists as holding no parameter.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from engine.errors import LockstepError, ModelFileError
from engine.families.family import (
    Either,
    Layout,
    Microscaled,
    Rename,
    Split,
    Stack,
    Tie,
    Verb,
)
from engine.files import SHOWN, few
from engine.weights.arrange import arrange, named, of_expert, sources
from engine.weights.checkpoint import Checkpoint
from engine.weights.tensors import StoredTensor

Plan = Mapping[str, Verb]

_LAYER = re.compile(r"^layers\.(\d+)\.")


def planned(decoder: nn.Module, checkpoint: Checkpoint) -> Plan:
    """One verb per parameter, with the names of the checkpoint's tensors and every Either decided.

    Raises ModelFileError naming parameters and tensors that are missing, left over or of the wrong
    shape, LockstepError where the layout has no verb for a parameter.
    """
    layout = checkpoint.layout
    names = _Names(layout, checkpoint.tensors)
    plan: dict[str, Verb] = {}
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    for parameter in parameters:
        verb = layout.verbs.get(in_layout(parameter))
        if verb is None:
            raise LockstepError(
                f"the family's weight layout has no rule for the parameter {parameter}"
            )
        plan[parameter] = names.decided(verb, _LAYER.match(parameter))
    problems = {
        "missing tensors": list(_missing(plan, checkpoint.tensors)),
        "wrong shapes": list(_misshapen(plan, parameters, checkpoint.tensors)),
        "tensors that this model has no parameter for": names.left_over(plan),
    }
    if not any(problems.values()):
        problems["wrong shapes"] = list(_partly_used(plan, checkpoint.tensors))
    if any(problems.values()):
        raise ModelFileError(
            f"{checkpoint.path} does not hold the model that its config describes; "
            + "; ".join(f"{what}: {few(which)}" for what, which in problems.items() if which)
        )
    return plan


def in_layout(parameter: str) -> str:
    """A parameter's name as layouts have it, `{i}` for the layer's number."""
    return _LAYER.sub("layers.{i}.", parameter)


class _Names:
    """A layout's names as a checkpoint writes them: behind the prefix that leads to most tensors."""

    def __init__(self, layout: Layout, tensors: Mapping[str, StoredTensor]) -> None:
        self.layout = layout
        self.tensors = tensors
        first = [
            source.replace("{i}", "0") for verb in layout.verbs.values() for source in sources(verb)
        ]
        self.prefix = max(
            layout.prefixes, key=lambda prefix: sum(prefix + name in tensors for name in first)
        )

    def decided(self, verb: Verb, layer: re.Match[str] | None) -> Verb:
        """The verb with whole names; of several options that of which the checkpoint has most."""
        match verb:
            case Either(options):
                return max((self.decided(option, layer) for option in options), key=self._share)
            case Rename() | Tie() | Microscaled():
                return named(verb, lambda source: self._whole(source, layer))
            case _:
                return replace(verb, of=self.decided(verb.of, layer))

    def _whole(self, source: str, layer: re.Match[str] | None) -> str:
        if layer:
            source = source.replace("{i}", layer[1])
        # A head may stand outside of what the others' prefix names.
        prefixes = (self.prefix, *self.layout.prefixes, "")
        found = (prefix + source for prefix in prefixes if prefix + source in self.tensors)
        return next(found, self.prefix + source)

    def _share(self, verb: Verb) -> float:
        there = [source in self.tensors for source in sources(verb)]
        return sum(there) / len(there)

    def left_over(self, plan: Plan) -> list[str]:
        """Tensors that nothing reads; of the first, which are shown, what is known besides."""
        used = {source for verb in plan.values() for source in sources(verb)}
        patterns = [prefix + p for p in self.layout.ignored for prefix in {"", self.prefix}]
        left = [
            name
            for name in self.tensors
            if name not in used and not any(fnmatchcase(name, pattern) for pattern in patterns)
        ]
        return [self._explained(name, plan) for name in left[:SHOWN]] + left[SHOWN:]

    def _explained(self, name: str, plan: Plan) -> str:
        parameter = self._parameter_of(name)
        if parameter is None:
            return name
        if parameter in plan:
            return f"{name} ({parameter} is made from {next(sources(plan[parameter]))})"
        return f"{name} (the config declares no {parameter})"

    def _parameter_of(self, name: str) -> str | None:
        """The parameter that the layout would make of a tensor in some other model or age."""
        for parameter, verb in self.layout.verbs.items():
            for source in sources(verb):
                before, _, after = re.escape(source).partition(re.escape("{i}"))
                pattern = f"{before}(\\d+){after}" if after else before
                found = re.fullmatch(re.escape(self.prefix) + pattern, name)
                if found:
                    return parameter.replace("{i}", found[1] if after else "")
        return None


def _missing(plan: Plan, tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    for parameter, verb in plan.items():
        if isinstance(verb, Tie) and any(s in tensors for s in sources(plan[verb.target])):
            continue
        for source in sources(verb):
            if source not in tensors:
                declared = ", which the config declares" if parameter.endswith("bias") else ""
                yield f"{source} (for {parameter}{declared})"


def _misshapen(
    plan: Plan, parameters: Mapping[str, Tensor], tensors: Mapping[str, StoredTensor]
) -> Iterator[str]:
    for parameter, verb in plan.items():
        read = list(sources(verb))
        if not all(source in tensors for source in read):
            continue
        wanted = tuple(parameters[parameter].shape)
        if _shape(verb, tensors) == wanted:
            continue
        held = f"{read[0]} is {list(tensors[read[0]].shape)}"
        if isinstance(verb, Rename | Tie):
            yield f"{held}, but {parameter} is {list(wanted)}"
        else:
            yield f"{held}, from which {parameter}, {list(wanted)}, cannot be made"


def _partly_used(plan: Plan, tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Tensors that are cut into parameters and would have something left."""
    taken: dict[tuple[Verb, int], list[tuple[int, int]]] = defaultdict(list)
    for verb in plan.values():
        for cut in _cuts(verb):
            taken[cut.of, cut.axis].append((cut.start, cut.stop))
    for (whole, axis), parts in taken.items():
        shape = _shape(whole, tensors) or ()
        end = 0
        for start, stop in sorted(parts):
            end = max(end, stop) if start <= end else end
        if end != shape[axis]:
            name = next(sources(whole))
            yield f"of {name}, {list(shape)}, the model uses {end} of {shape[axis]} on axis {axis}"


def _cuts(verb: Verb) -> Iterator[Split]:
    match verb:
        case Rename() | Tie() | Microscaled() | Either():
            return
        case Stack(of, count):
            for e in range(count):
                yield from _cuts(of_expert(of, e))
            return
        case Split():
            yield verb
    yield from _cuts(verb.of)


def _shape(verb: Verb, tensors: Mapping[str, StoredTensor]) -> tuple[int, ...] | None:
    """What `arrange` makes of tensors of these shapes; None where it cannot."""
    if isinstance(verb, Rename | Tie):  # nearly all, in most checkpoints
        return tensors[verb.source].shape

    def stored(name: str, dtype: torch.dtype, *, kept: bool) -> Tensor:
        return torch.empty(tensors[name].shape, dtype=dtype, device="meta")

    try:
        return tuple(arrange(verb, stored, torch.float32).shape)
    except (ValueError, RuntimeError, IndexError):
        return None
