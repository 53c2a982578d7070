"""Maps of few rows by torch and in slices: `python docs/measurements/few_rows.py [ROUNDS] [--graphs]`.

The maps of SmolLM2-135M in float32, each with as many copies of its weights as do not fit a processor's
cache, in turns; medians in microseconds. With --graphs as a graph of its own, of a sum for each row, and
of rows side by side in the processor's vectors; to call a graph is among it, which a step does once for all maps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.linear import inner, linear, side_by_side, written

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


def compiled(sums: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """`sums` as a graph for each shape, in code of its own, by which torch keeps graphs."""
    own = FunctionType(sums.__code__.replace(), sums.__globals__, sums.__name__)
    graph: Callable[[Tensor, Tensor], Tensor] = torch.compile(own, fullgraph=True, dynamic=False)
    return graph


def each_by_itself(x: Tensor, weight: Tensor) -> Tensor:
    return torch.stack([inner(weight, ..., row) for row in written(x)])


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    parser.add_argument("--graphs", action="store_true")
    asked = parser.parse_args()
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]]
    ways = {"torch": F.linear, "in slices": linear}
    if asked.graphs:
        torch._dynamo.config.recompile_limit = len(MAPS) * len(ROWS)
        ways = {"a sum for each": compiled(each_by_itself), "side by side": compiled(side_by_side)}
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {asked.rounds} rounds")
    print(f"| map | rows | {' | '.join(ways)} | ratio | GB/s of weights |")
    print("|---|---|---|---|---|---|")
    for name, shape in MAPS.items():
        size = 4 * shape[0] * shape[1]
        copies = [torch.randn(shape) for _ in range(1 + int(BYTES) // size)]
        for rows in ROWS:
            x = torch.randn(rows, shape[1])
            for way in ways.values():
                way(x, copies[0])  # compiles it
            times = [
                [microseconds(f, x, copies) for f in ways.values()] for _ in range(asked.rounds)
            ]
            before, now = (statistics.median(each) for each in zip(*times, strict=True))
            ratio = statistics.median(a / b for a, b in times)
            print(
                f"| {name} | {rows} | {before:.0f} | {now:.0f} | {ratio:.2f} | {size / now / 1e3:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
