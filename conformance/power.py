"""How small a fault the suite still sees: the strength of each probe, measured.

A fault is added to what a correct engine computes in a lockstep run, whose values differ from the
truth by legal noise already, and made smaller until fewer than 95 % of the trials notice it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from conformance.candidate import operation
from conformance.envelope import Envelope, row_errors
from conformance.experts import is_expert_choice
from conformance.golden import Golden
from conformance.lockstep import everywhere, walk
from conformance.reorder import Variant
from conformance.tally import MEASURED, Say, chosen_goldens
from conformance.tapped import Tapped
from conformance.varied_engine import VariedEngine
from engine import Engine

TRIALS = 40
DETECTED = 0.95
_FINEST, _COARSEST = 2.0**-30, 2.0
_STEP = 2.0**0.25  # how finely a size is found

Fault = Callable[[Tensor, Tensor, float, torch.Generator], Tensor]


def _factor(value: Tensor, scale: Tensor, size: float, draw: torch.Generator) -> Tensor:
    return value * (1 + size)


def _scatter(value: Tensor, scale: Tensor, size: float, draw: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, value.shape, generator=draw) * 2 - 1
    return value + size * scale[..., None] * signs


def _element(value: Tensor, scale: Tensor, size: float, draw: torch.Generator) -> Tensor:
    """One number of one row in each trial, among those that are not masked."""
    result = value.clone()
    for trial, numbers in enumerate(result):
        places = numbers.isfinite().nonzero()
        place = places[int(torch.randint(len(places), (1,), generator=draw))]
        numbers[tuple(place)] += size * scale[trial][tuple(place[:-1])]
    return result


#: What is done to a probe's value [trials, ..., row]; sizes are relative to the row's scale.
FAULTS: Mapping[str, Fault] = {"factor": _factor, "scatter": _scatter, "element": _element}


@dataclass(frozen=True)
class Strength:
    """The smallest fault of one kind that at least 95 % of trials notice at one probe."""

    case: str
    probe: str
    dtype: str
    fault: str
    smallest: float


@dataclass(frozen=True)
class Power:
    """What was measured; there is nothing in it that could fail."""

    strengths: tuple[Strength, ...]
    exit_status = 0

    def to_json(self) -> list[dict[str, Any]]:
        """The document of `lockstep golden power --json`."""
        return [asdict(s) for s in self.strengths]


def measure(names: Sequence[str], say: Say) -> Power:
    """The strength of every probe of the goldens called `names`, all tiny ones if there are none."""
    found: list[Strength] = []
    for folder in chosen_goldens(names):
        golden = Golden(folder)
        for dtype in MEASURED:
            say(f"power: {golden.case} in {dtype}")
            found += _strengths(golden, dtype)
    return Power(tuple(found))


def _strengths(golden: Golden, dtype: str) -> list[Strength]:
    """Of every probe over the prompt, by `TRIALS` legal variants of the engine."""
    engine = Engine.load(golden.folder, dtype=dtype)
    run = getattr(torch, dtype)
    prompt = golden.schedule[0]
    shown: dict[str, list[Tensor]] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        shown.setdefault(probe, []).append(value[0].clone())
        return value

    for n in range(TRIALS):
        candidate = VariedEngine(engine, Variant(permute=n or None))
        walk(Tapped(candidate, keep), golden, run, everywhere, [prompt])
    envelope = golden.envelope("lockstep", run)
    return [
        Strength(golden.case, probe, dtype, name, _smallest(golden, envelope, probe, values, fault))
        for probe, values in shown.items()
        if probe in envelope.noise and not is_expert_choice(probe)
        for name, fault in FAULTS.items()
    ]


def _smallest(
    golden: Golden, envelope: Envelope, probe: str, values: Sequence[Tensor], fault: Fault
) -> float:
    prompt = golden.schedule[0]
    truth, scale = golden.truth(probe, 0, prompt), golden.scale(probe, 0, prompt)
    trials = torch.stack(list(values)).double()
    visible = truth.masked_fill(truth == -torch.inf, 0.0)
    rows = (visible.abs().amax(-1) if scale is None else scale).expand(trials.shape[:-1])

    def detected(size: float) -> bool:
        draw = torch.Generator("cpu").manual_seed(0)
        faulty = fault(trials, rows, size, draw).to(values[0].dtype)
        shares = envelope.shares(probe, row_errors(faulty, truth, scale))
        noticed = (shares.flatten(1).amax(1) > 1).double().mean()
        return float(noticed) >= DETECTED

    low, high = 0, round(math.log(_COARSEST / _FINEST, _STEP))
    while low < high:
        middle = (low + high) // 2
        if detected(_FINEST * _STEP**middle):
            high = middle
        else:
            low = middle + 1
    return _FINEST * _STEP**low


def print_power(power: Power, console: Console) -> None:
    """By operation, the least that is noticed at its weakest probe, over cases and layers."""
    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    columns = [(dtype, fault) for dtype in MEASURED for fault in FAULTS]
    for dtype, fault in columns:
        table.add_column(f"{dtype}\n{fault}", justify="right")
    for name in dict.fromkeys(operation(s.probe) for s in power.strengths):
        weakest = [
            max(
                s.smallest
                for s in power.strengths
                if operation(s.probe) == name and (s.dtype, s.fault) == column
            )
            for column in columns
        ]
        table.add_row(name, *(f"{x:.1e}" for x in weakest))
    console.print(table)
    console.print(
        "the smallest fault, relative to a row's scale, that 95 % of the trials notice: a wrong factor, "
        "all numbers off by as much either way, one number of one row off"
    )
