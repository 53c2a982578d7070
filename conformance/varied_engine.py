"""This project's engine run in legal variants of itself, to measure what must not count as an error."""

from __future__ import annotations

from torch import Tensor

from conformance.candidate import Tap
from conformance.engine_candidate import EngineCandidate
from conformance.reorder import Variant
from engine.generate import Engine


class VariedEngine(EngineCandidate):
    """The engine in one variant; chunks are for the schedule to say, and padding it does not know."""

    def __init__(self, engine: Engine, variant: Variant) -> None:
        super().__init__(engine, variant.attention, batch=variant.batch)
        self.variant = variant

    def step(self, ids: Tensor, tap: Tap) -> None:
        with self.variant.in_force():
            super().step(ids, tap)
