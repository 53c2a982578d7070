"""This project's engine as the first candidate: level 5, one candidate per attention backend."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import torch
from torch import Tensor

from conformance.candidate import Candidate, Level, Location, Tap
from engine.backends import backend as backend_named
from engine.backends import supports
from engine.backends.tiled import Tiled
from engine.generate import Engine, SamplingParams
from engine.probe import Probe, attached, probes

#: Goldens have few tokens: these tiles they cross.
_SMALL_TILES = Tiled(queries=4, keys=6)


def candidates(model: Path, device: str, dtype: str) -> list[EngineCandidate]:
    """The engine on each backend that fits the model; between them, prompts come whole and in chunks."""
    engine = Engine.load(model, device=device, dtype=dtype)
    other = "sdpa" if supports("sdpa", engine.spec) else "tiled"
    return [EngineCandidate(engine, "eager", (None,)), EngineCandidate(engine, other, (5,))]


class EngineCandidate(Candidate):
    level = Level.L5

    def __init__(
        self,
        engine: Engine,
        backend: str,
        prefill: tuple[int | None, ...] = (None,),
        batch: int = 1,
    ) -> None:
        self.engine = engine
        self.batch = batch  # equal rows that are fed side by side
        self.prefill = prefill
        named = backend_named(backend, engine.spec, device=engine.device, dtype=engine.dtype)
        self.backend = _SMALL_TILES if backend == "tiled" else named
        self.name = f"engine ({backend})"
        self.lacks = () if backend == "eager" else ("*.attn.scores", "*.attn.weights")
        self._called_at: dict[str, Location] = {}

    def begin(self, capacity: int) -> None:
        self.engine.decoder.use(self.backend)
        self.cache = self.engine.new_cache(capacity, self.batch)

    @torch.inference_mode()
    def step(self, ids: Tensor, tap: Tap) -> None:
        def located(probe: str, value: Tensor) -> Tensor:
            if probe not in self._called_at:
                self._called_at[probe] = _caller()
            # The logits that count are those that a caller gets, not those on their way there.
            return value if probe == "logits" else tap(probe, value)

        decoder = self.engine.decoder
        with attached(located, ("", decoder), ("cache", self.cache)):
            logits = decoder(ids.expand(self.batch, -1).to(self.engine.device), self.cache)
        tap("logits", logits)

    def locate(self, probe: str) -> Location | None:
        """The operation's own code where it is a module, else the line that ends in the probe."""
        module = (probes(self.engine.decoder) | probes(self.cache, "cache")).get(probe)
        if module is not None and type(module) is not Probe:
            source = inspect.getsourcefile(type(module))
            line = inspect.getsourcelines(type(module).forward)[1]
            return Location(str(source), line)
        return self._called_at.get(probe)

    def encode(self, text: str) -> list[int]:
        return self.engine.tokenizer.encode(text)

    def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return self.engine.generate(ids, params).token_ids

    def text(self, prompt: str, max_tokens: int) -> str | None:
        return self.engine.generate(prompt, SamplingParams(max_tokens=max_tokens)).text


def _caller() -> Location:
    """The innermost line of the engine that is running: the one that called the probe."""
    home = Path(inspect.getsourcefile(Probe) or "").parent
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(home) and file.name != "probe.py":
            break
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)
