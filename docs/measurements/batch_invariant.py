"""The price of the batch-invariant mode: `python docs/measurements/batch_invariant.py MODEL [--threads N]`.

Tokens per second of prefill and of decoding, one sequence and eight, in the ordinary mode and with tiles
of several heights, taken by turns in one process (medians). Says, too, whether bits are the same.
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

from engine import Engine, invariant
from engine.backends.tiled import Tiled
from engine.cache import ContiguousCache, Part

PROMPT, STEPS, CAPACITY = 256, 4, 512
HEIGHTS = (8, 16, 32)


def rates(engine: Engine) -> dict[str, float]:
    """Tokens per second of each kind of work."""
    decoder, rates = engine.decoder, {}
    ids = torch.arange(PROMPT)[None] % engine.spec.vocab_size

    def timed(name: str, tokens: int, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        rates[name] = tokens / (time.perf_counter() - start)

    for batch in (1, 8):
        cache = ContiguousCache(engine.spec, CAPACITY, batch=batch, dtype=engine.dtype)
        first = [Part(cache.open(), PROMPT)]

        def prefill(cache: ContiguousCache = cache, parts: list[Part] = first) -> None:
            decoder(ids, cache, parts, last=1)

        if batch == 1:
            timed("prefill", PROMPT, prefill)
        else:
            prefill()
        others = [Part(cache.open(), 16 + n) for n in range(batch - 1)]
        for part in others:
            decoder(ids[:, : part.n], cache, [part], last=1)

        def decode(cache: ContiguousCache = cache, batch: int = batch) -> None:
            for _ in range(STEPS):
                decoder(ids[:, :batch], cache, [Part(room, 1) for room in cache.rooms])

        timed(f"decode {batch}", STEPS * batch, decode)
    return rates


@torch.inference_mode()
def main(model: str, threads: int, rounds: int) -> None:
    torch.set_num_threads(threads)
    engine = Engine.load(model)
    fixed = Engine.load(model, batch_invariant=True)
    seen: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        seen.setdefault("ordinary", []).append(rates(engine))
        for height in HEIGHTS:
            invariant.ROWS = invariant.QUERIES = height
            invariant._TILED = Tiled(height, invariant.KEYS, invariant.INVARIANT)
            seen.setdefault(f"{height} rows", []).append(rates(fixed))
    print(f"{model}, float32, {threads} thread(s), medians of {rounds} rounds by turns; tokens/s")
    print("| mode | prefill 256 | decode 1 | decode 8 |\n|---|---|---|---|")
    base = {
        name: statistics.median(r[name] for r in seen["ordinary"]) for name in seen["ordinary"][0]
    }
    for mode, all_rates in seen.items():
        cells = []
        for name, ours in base.items():
            rate = statistics.median(r[name] for r in all_rates)
            cells.append(f"{rate:.1f} ({ours / rate:.2f} times the time)")
        print(f"| {mode} | " + " | ".join(cells) + " |")
    ids = [n * 37 % engine.spec.vocab_size for n in range(60)]
    for name, each in (("ordinary", engine), ("batch-invariant", fixed)):
        same = torch.equal(each.logits(ids), each.logits(ids, chunk=7))
        print(f"{name}: one pass and chunks of 7 have {'the same' if same else 'other'} bits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    main(given.model, given.threads, given.rounds)
