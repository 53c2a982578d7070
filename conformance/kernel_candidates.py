"""The engine on one attention backend as a candidate, a factory by each one's name: `lockstep check --backend`."""

from __future__ import annotations

from pathlib import Path

from conformance.candidate import Factory, NotOfferedError
from conformance.engine_candidate import EngineCandidate
from engine.backends import BACKENDS, backend
from engine.errors import RequestError
from engine.generate import Engine
from engine.weights import open_checkpoint


def _on(name: str) -> Factory:
    def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
        """Prompts come whole and in chunks; where the kernel cannot form the scores, there is none."""
        try:
            backend(name, open_checkpoint(model).spec)
        except RequestError as error:
            raise NotOfferedError(str(error)) from None
        engine = Engine.load(model, device=device, dtype=dtype, backend=name)
        return [EngineCandidate(engine, name, (None, 5))]

    return candidates


eager, tiled, sdpa, flash, flex = map(_on, ("eager", "tiled", "sdpa", "flash", "flex"))


def named(name: str) -> str:
    """The factory of a backend as --candidate spells it; RequestError where there is no such backend."""
    if name not in BACKENDS:
        raise RequestError(f"no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    return f"{__name__}:{name}"
