"""The engine on each attention backend that fits, as candidates: `lockstep check --candidate`."""

from __future__ import annotations

from pathlib import Path

from conformance.engine_candidate import EngineCandidate
from engine.backends import BACKENDS
from engine.backends import backend as backend_named
from engine.errors import RequestError
from engine.generate import Engine


def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
    """One for each backend that can be had on the device and can form the model's scores."""
    engine = Engine.load(model, device=device, dtype=dtype)
    return [EngineCandidate(engine, name) for name in BACKENDS if _fits(name, engine)]


def _fits(name: str, engine: Engine) -> bool:
    try:
        backend_named(name, engine.spec, device=engine.device, dtype=engine.dtype)
    except RequestError:
        return False
    return True
