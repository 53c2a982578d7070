"""Maps of few rows by torch and in slices: `python docs/measurements/few_rows.py [ROUNDS]`.

The maps of SmolLM2-135M in float32, each with as many copies of its weights as do not fit a processor's
cache, in turns; medians in microseconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

MAPS = {"query": (576, 576), "gate": (1536, 576), "down": (576, 1536), "head": (49152, 576)}
ROWS = (1, 2, 4, 8, 16, 32)
BYTES = 200e6  # of the copies of a weight


def microseconds(
    call: Callable[[Tensor, Tensor], Tensor], x: Tensor, copies: list[Tensor]
) -> float:
    start = time.perf_counter()
    for weight in copies:
        call(x, weight)
    return (time.perf_counter() - start) / len(copies) * 1e6


@torch.inference_mode()
def main() -> None:
    from engine.linear import linear

    rounds = int(sys.argv[1]) if sys.argv[1:] else 7
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {rounds} rounds")
    print("| map | rows | torch | in slices | ratio | GB/s of weights |")
    print("|---|---|---|---|---|---|")
    for name, shape in MAPS.items():
        size = 4 * shape[0] * shape[1]
        copies = [torch.randn(shape) for _ in range(1 + int(BYTES) // size)]
        for rows in ROWS:
            x = torch.randn(rows, shape[1])
            times = [
                [microseconds(f, x, copies) for f in (F.linear, linear)] for _ in range(rounds)
            ]
            whole, cut = (statistics.median(each) for each in zip(*times, strict=True))
            ratio = statistics.median(a / b for a, b in times)
            print(
                f"| {name} | {rows} | {whole:.0f} | {cut:.0f} | {ratio:.2f} | {size / cut / 1e3:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
