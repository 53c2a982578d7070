"""Eight prompts together against the same eight one by one: tokens per second, ids, and the machine's limits.

    python docs/measurements/batches.py [MODEL] [--rounds 3] [--tokens 64] [--cache ring]

Both are timed in turns in one process; medians of their ratio are printed. A greedy id that differs is
shown with the margin of the two best logits there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine import Engine, SamplingParams
from engine.generate import Completion

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three laws of robotics, as Isaac Asimov first wrote them down in 1942, are",
    "List of prime numbers: 2, 3, 5,",
    "Dear Sir or Madam,\n\nI am writing to you",
    "Photosynthesis is the process by which",
)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def limits(engine: Engine) -> tuple[float, float]:
    """Seconds to read all weights once, and to multiply eight rows with them: what a step cannot beat."""
    weights = [p for p in engine.decoder.parameters() if p.ndim == 2]
    rows = [torch.randn(8, p.shape[1], dtype=p.dtype) for p in weights]

    def multiply() -> None:
        for row, weight in zip(rows, weights, strict=True):
            torch.nn.functional.linear(row, weight)

    read = min(seconds(lambda: [p.sum() for p in weights]) for _ in range(5))
    return read, min(seconds(multiply) for _ in range(5))


def differing(engine: Engine, alone: Completion, together: Completion) -> str | None:
    """Where the ids part, and by how much the best logit was better than the next there."""
    pairs = zip(alone.token_ids, together.token_ids, strict=True)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if at is None:
        return None
    ids = [*alone.prompt_token_ids, *alone.token_ids[:at]]
    best = engine.logits(ids)[-1].topk(2).values
    return f"token {at}: {alone.token_ids[at]} and {together.token_ids[at]}, margin {best[0] - best[1]:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--cache", default="ring")
    given = parser.parse_args()
    engine = Engine.load(given.model, cache=given.cache)
    params = SamplingParams(max_tokens=given.tokens, ignore_eos=True)
    prompts, n = list(PROMPTS), len(PROMPTS) * given.tokens
    together = engine.generate(prompts, params)
    alone = [engine.generate(prompt, params) for prompt in prompts]
    ratios, rates = [], []
    for _ in range(given.rounds):
        slow = seconds(lambda: [engine.generate(prompt, params) for prompt in prompts])
        fast = seconds(lambda: engine.generate(prompts, params))
        ratios.append(slow / fast)
        rates.append((n / slow, n / fast))
    one, eight = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"one by one {one:.1f} tokens/s, eight together {eight:.1f} tokens/s")
    print(f"ratio {statistics.median(ratios):.2f} (of {', '.join(f'{r:.2f}' for r in ratios)})")
    read, product = limits(engine)
    print(
        f"a step of eight takes {8 / eight * 1e3:.0f} ms; reading the weights {read * 1e3:.0f} ms,"
    )
    print(
        f"their products with eight rows {product * 1e3:.0f} ms: {8 / product:.0f} tokens/s at most"
    )
    ties = [differing(engine, a, b) for a, b in zip(alone, together, strict=True)]
    print(f"{sum(tie is None for tie in ties)} of {len(ties)} answers have the same ids")
    for prompt, tie in zip(prompts, ties, strict=True):
        if tie is not None:
            print(f"{prompt!r:.40}: {tie}")


if __name__ == "__main__":
    main()
