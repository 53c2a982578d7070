"""A candidate that needs no engine: it shows a golden's own truth, and whatever a test changes in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from conformance.candidate import Candidate, Level, Tap
from conformance.golden import Golden
from conformance.verdict import Trial, trial

Change = Callable[[str, Tensor], Tensor | None]


class Replay(Candidate):
    """Every probe as the reference has it; `change` may alter a value, or drop it with None."""

    def __init__(
        self,
        golden: Golden,
        change: Change = lambda probe, value: value,
        level: Level = Level.L5,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.golden, self.change, self.level, self.dtype = golden, change, level, dtype

    def begin(self, capacity: int) -> None:
        self.position = 0

    def step(self, ids: Tensor, tap: Tap) -> None:
        start, stop = self.position, self.position + len(ids)
        self.position = stop
        for probe in self.golden.probes(self.level):
            truth = self.golden.truth(probe, start, stop)
            value = truth.to(self.dtype) if truth.is_floating_point() else truth
            changed = self.change(probe, value[None].clone())
            if changed is not None:
                tap(probe, changed)


def judged(golden: Golden, change: Change, level: Level = Level.L5) -> Trial:
    """What a trial says of the truth with that change in it."""
    return trial(Replay(golden, change, level), golden, torch.float32)


def at(probe: str, alter: Change) -> Change:
    """A change of one probe."""
    return lambda name, value: alter(name, value) if name == probe else value
