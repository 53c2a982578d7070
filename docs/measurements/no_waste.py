"""What one product of q, k and v, and of gate and up, would save: `python docs/measurements/no_waste.py [ROUNDS]`.

The maps of all layers of SmolLM2-135M, drawn at random, with three and two products as the engine has them,
and with one of their weights side by side, whose result is cut again. Both in turns; medians in milliseconds,
and the saving as a share of a whole step of the engine with the same shapes.
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

LAYERS, DIM = 30, 576
PARTS = {"q, k, v": (576, 192, 192), "gate, up": (1536, 1536)}
ROWS = (1, 8, 512)
SPEC = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": DIM,
    "intermediate_size": 1536,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


def whole_step(rows: int) -> Callable[[], object]:
    """A pass of one token of each of so many sequences, up to 8; else of so many tokens of one."""
    from engine.cache import ContiguousCache
    from tests.engine import tiny

    made = tiny.decoder(SPEC, "sdpa")
    batch, tokens = (rows, 1) if rows <= 8 else (1, rows)

    def step() -> object:
        cache = ContiguousCache(made.spec, tokens, batch=batch)
        return made(torch.zeros(batch, tokens, dtype=torch.int64), cache, last=1)

    return step


def apart(x: Tensor, layers: list[list[Tensor]]) -> Callable[[], object]:
    return lambda: [[F.linear(x, weight) for weight in weights] for weights in layers]


def together(x: Tensor, layers: list[Tensor], sizes: tuple[int, ...]) -> Callable[[], object]:
    return lambda: [F.linear(x, weight).split(sizes, -1) for weight in layers]


def in_turns(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """The median milliseconds of each."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, mine in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            mine.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(mine) for mine in times]


@torch.inference_mode()
def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 30
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {rounds} rounds")
    print("| rows | maps | apart, ms | together | a whole step | saved of the step |")
    print("|---|---|---|---|---|---|")
    for rows in ROWS:
        step, x = whole_step(rows), torch.randn(rows, DIM)
        for name, sizes in PARTS.items():
            layers = [[torch.randn(n, DIM) for n in sizes] for _ in range(LAYERS)]
            joined = [torch.cat(weights) for weights in layers]
            calls = [apart(x, layers), together(x, joined, sizes), step]
            a, b, whole = in_turns(calls, rounds)
            print(f"| {rows} | {name} | {a:.2f} | {b:.2f} | {whole:.1f} | {(a - b) / whole:+.1%} |")


if __name__ == "__main__":
    main()
