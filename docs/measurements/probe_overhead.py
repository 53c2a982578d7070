"""What detached probes cost in an eager decode step: `python docs/measurements/probe_overhead.py MODEL`.

The cost of one call of a plain probe, times their number, as a share of a whole step (medians). Timing
steps with and without probes against each other drowns in the noise of a shared machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine import Engine
from engine.probe import Probe, probes


def median_seconds(work: Callable[[], object], times: int) -> float:
    durations = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


@torch.inference_mode()
def main(model: str) -> None:
    engine = Engine.load(model, backend="eager")
    cache = engine.new_cache(64)
    token = torch.tensor([[1]])
    step = median_seconds(lambda: engine.decoder(token, cache), 48)
    plain = [
        probe
        for root in (engine.decoder, cache)
        for probe in probes(root).values()
        if type(probe) is Probe
    ]
    value, probe = torch.ones(1), Probe()
    call = median_seconds(lambda: [probe(value) for _ in range(1000)], 200) / 1000
    share = len(plain) * call / step
    print(
        f"{len(plain)} plain probes of {call * 1e6:.2f} us in a decode step of {step * 1e3:.1f} ms: "
        f"{100 * share:.2f} %"
    )


if __name__ == "__main__":
    main(sys.argv[1])
