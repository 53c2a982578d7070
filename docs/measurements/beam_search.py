"""Tokens a second of a beam search beside as many greedy answers to as many prompts, in one run.

    python docs/measurements/beam_search.py [MODEL] [BEAMS] [TOKENS]

Both compute the same number of rows in every pass. What the search takes longer is its choice over all
beams and vocabulary, and the rows that are copied where a beam has several continuations.
"""

from __future__ import annotations

import sys
import time

from engine import BeamSearch, Engine, SamplingParams

PROMPT = "Once upon a time there was a"
ROUNDS = 3


def main(model: str = "smollm2-135m", beams: str = "4", tokens: str = "32") -> None:
    engine = Engine.load(model)
    rows, length = int(beams), int(tokens)
    plain = SamplingParams(max_tokens=length, ignore_eos=True)
    search = SamplingParams(max_tokens=length, ignore_eos=True, n=rows, beams=BeamSearch(rows))
    best: dict[str, float] = {}
    for _ in range(ROUNDS):  # in turns, so that a busy moment hits both
        for name, prompt, params in (
            ("greedy rows", [PROMPT] * rows, plain),
            ("beams", PROMPT, search),
        ):
            start = time.perf_counter()
            engine.generate(prompt, params)
            rate = rows * length / (time.perf_counter() - start)
            best[name] = max(rate, best.get(name, 0.0))
    for name, rate in best.items():
        print(f"{rows} {name}: {rate:.1f} tokens/s")
    print(f"a beam search has {best['beams'] / best['greedy rows']:.2f} times the rate")


if __name__ == "__main__":
    main(*sys.argv[1:])
