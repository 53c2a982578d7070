"""What a detached probe costs in an eager decode step: `python docs/measurements/probe_overhead.py MODEL`.

Plain probes are taken out of the decoder (a bare function in their place) and put back, in turn,
so that a drifting machine slows both alike. Prints the median of the paired ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from engine import Engine
from engine.cache import ContiguousCache
from engine.probe import Probe

PAIRS, STEPS = 24, 4


def _identity(value: Tensor) -> Tensor:
    return value


@contextmanager
def without_probes(*roots: nn.Module) -> Iterator[int]:
    """Replaces every plain probe by a bare function; gives their number."""
    taken = [
        (parent, name, probe)
        for root in roots
        for parent in root.modules()
        for name, probe in list(parent.named_children())
        if type(probe) is Probe
    ]
    for parent, name, _ in taken:
        del parent._modules[name]
        parent.__dict__[name] = _identity
    try:
        yield len(taken)
    finally:
        for parent, name, probe in taken:
            del parent.__dict__[name]
            parent._modules[name] = probe


@torch.inference_mode()
def seconds(engine: Engine, cache: ContiguousCache, token: Tensor) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        engine.decoder(token, cache)
    return time.perf_counter() - start


def main(model: str) -> None:
    engine = Engine.load(model, backend="eager")
    token = torch.tensor([[1]])
    cache = engine.new_cache(2 * (PAIRS + 2) * STEPS)
    ratios = []
    for pair in range(PAIRS + 2):
        attached = seconds(engine, cache, token)
        with without_probes(engine.decoder, cache) as n:
            bare = seconds(engine, cache, token)
        if pair >= 2:  # warmed up
            ratios.append(attached / bare)
    print(
        f"{n} plain probes, {PAIRS} pairs of {STEPS} decode steps: with probes / without, "
        f"median {statistics.median(ratios):.4f} (quartiles "
        f"{statistics.quantiles(ratios)[0]:.4f} to {statistics.quantiles(ratios)[2]:.4f})"
    )


if __name__ == "__main__":
    main(sys.argv[1])
