"""The engine with compiled steps as a candidate, to be named in `lockstep check --candidate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from conformance.candidate import Level, Tap
from conformance.engine_candidate import EngineCandidate
from engine.generate import Engine


def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
    """The engine whose decoding steps are graphs; prompts come whole and in chunks."""
    engine = Engine.load(model, device=device, dtype=dtype, compiled=True)
    return [CompiledCandidate(engine, "eager", (None, 5))]


@contextmanager
def graphs_as_they_are() -> Iterator[list[torch.fx.GraphModule]]:
    """What is compiled in here is captured as graphs, which are run as they are; gives these graphs.

    Capturing takes a second, the compiler's own code for a graph a minute.
    """
    seen: list[torch.fx.GraphModule] = []
    compile_ = torch.compile

    def as_it_is(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(graph)
        return graph.forward

    def captured(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return compile_(function, **{**options, "backend": as_it_is})

    with patch.object(torch, "compile", captured):
        yield seen


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
