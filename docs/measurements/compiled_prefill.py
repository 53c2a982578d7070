"""What compiling a whole prompt would give: `python docs/measurements/compiled_prefill.py [TOKENS] [ROUNDS]`.

The first pass of SmolLM2-135M in float32 as it is, and captured and compiled for that number of tokens, in
turns. The engine compiles steps alone; this is the reason.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine import Engine


@torch.inference_mode()
def main() -> None:
    tokens, rounds = (int(n) for n in (*sys.argv[1:], *(512, 7)[len(sys.argv) - 1 :]))
    engine = Engine.load("smollm2-135m")
    decoder = engine.decoder
    ids = torch.arange(tokens)[None] * 7 % decoder.spec.vocab_size
    places = torch.tensor([tokens - 1])

    def seconds(run: Callable[..., Tensor]) -> float:
        cache = engine.new_cache(tokens)
        start = time.perf_counter()
        step = decoder.step(cache.extend(cache.rows(ids.shape)))
        run(ids, step, cache.layers, places)
        return time.perf_counter() - start

    graph = torch.compile(decoder.run, fullgraph=True, dynamic=False)
    seconds(decoder.run)
    first = seconds(graph)
    times = [(seconds(decoder.run), seconds(graph)) for _ in range(rounds)]
    plain, compiled = (statistics.median(each) for each in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    print(f"{tokens} tokens, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"as it is {plain * 1e3:.0f} ms, compiled {compiled * 1e3:.0f} ms: {ratio:.2f} times")
    print(f"the first compiled pass took {first:.1f} s")


if __name__ == "__main__":
    main()
