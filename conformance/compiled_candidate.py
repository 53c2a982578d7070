"""The engine with compiled steps as a candidate, to be named in `lockstep check --candidate`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from conformance.candidate import Level, Tap
from conformance.engine_candidate import EngineCandidate
from engine.generate import Engine


def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
    """The engine whose decoding steps are graphs; prompts come whole and in chunks."""
    engine = Engine.load(model, device=device, dtype=dtype, compiled=True)
    return [CompiledCandidate(engine, "eager", (None, 5))]


class CompiledCandidate(EngineCandidate):
    """Shows logits alone: a graph has no probes, and is run while none is watched.

    What a step left in the cache is seen in the logits of those that follow.
    """

    level = Level.L3

    def __init__(
        self, engine: Engine, backend: str, prefill: tuple[int | None, ...], batch: int = 1
    ) -> None:
        super().__init__(engine, backend, prefill, batch)
        self.name = "engine (compiled)"
        self.lacks = ()

    @torch.inference_mode()
    def step(self, ids: Tensor, tap: Tap) -> None:
        batch = ids.expand(self.batch, -1).to(self.engine.device)
        tap("logits", self.engine.decoder(batch, self.cache))
