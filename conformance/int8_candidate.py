"""The engine with an int8 cache as a candidate, to be named in `lockstep check --candidate`."""

from __future__ import annotations

from pathlib import Path

from conformance.engine_candidate import EngineCandidate
from engine.generate import Engine


def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
    """The engine with an int8 cache, on the backend that shows everything.

    Its cache is held to half a step of each row; all else to the ordinary envelope, behind exact keys and
    values. Its own loop, which goes on from rounded ones, can be held to no reference.
    """
    engine = Engine.load(model, device=device, dtype=dtype, cache_dtype="int8")
    return [Int8Candidate(engine, "eager", (None, 5))]


class Int8Candidate(EngineCandidate):
    cache_rounding = 0.5 / 127

    def __init__(self, engine: Engine, backend: str, prefill: tuple[int | None, ...]) -> None:
        super().__init__(engine, backend, prefill)
        self.name += " with an int8 cache"

    def greedy(self, ids: list[int], max_tokens: int) -> None:
        return None

    def text(self, prompt: str, max_tokens: int) -> None:
        return None
