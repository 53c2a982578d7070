"""The memory of a walk: every hidden state and all attention weights of a real model, compared and dropped.

    python docs/measurements/long_walk.py smollm2-135m.gguf 2048 256

The truth is made up; every hidden state of it takes the memory that a real one would. Prints one JSON
object: the bytes of all values shown, the peak of the process, how many probes were compared.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
from torch import Tensor

from conformance.engine_candidate import EngineCandidate
from conformance.golden import Golden
from conformance.lockstep import nowhere, walk
from conformance.tapped import Tapped
from engine import Engine
from engine.probe import probes

HIDDEN = ("embed", "layers.[0-9].out", "layers.[0-9][0-9].out", "final_norm")


class MadeUp(Golden):
    """Hidden states after every layer, and what attention weighs: one number, of any size."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        spec = engine.spec
        layers = range(len(spec.layers))
        hidden = ["embed", *(f"layers.{i}.out" for i in layers), "final_norm"]
        weights = [f"layers.{i}.attn.weights" for i in layers]
        self.manifest = {
            "case": "made-up",
            "ids": [n % spec.vocab_size for n in range(tokens)],
            "prompt_tokens": tokens,
            "watch": [*HIDDEN, "*.attn.weights"],
            "probes": [*hidden, *weights],
        }
        heads = spec.layers[0].attn.n_heads
        one = torch.ones((), dtype=torch.float64)
        self.__dict__["scales"] = {}
        self.__dict__["trace"] = {
            **{p: torch.ones(tokens, spec.dim, dtype=torch.float64) for p in hidden},
            **{p: one.expand(heads, tokens, tokens) for p in weights},
        }


def main(model: Path, tokens: int, chunk: int) -> None:
    engine = Engine.load(model)
    golden = MadeUp(engine, tokens)
    shown = 0

    def count(probe: str, value: Tensor) -> Tensor:
        nonlocal shown
        shown += value.numel() * value.element_size()
        return value

    candidate = Tapped(EngineCandidate(engine, "eager"), count)
    result = walk(candidate, golden, torch.float32, nowhere, golden.schedule_in(chunk))
    report = {
        "shown": shown,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compared": len({m.probe for m in result.measurements if m.errors is not None}),
        "probes": len(probes(engine.decoder)),
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
