"""Answers with drafts against plain ones: the ratio of their times, and how many drafts were right.

    python docs/measurements/speculation.py [MODEL] [--draft MODEL] [--rounds 3] [--tokens 64]

Both are timed in turns in one process, and their ids must be the same; medians of the ratio are printed,
with the machine's load. The prompts ask for what is in them already, which is what a lookup is for; the
last one does not. With --draft there is a draft model instead of a lookup.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine import DraftModel, Engine, PromptLookup, SamplingParams

CODE = """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    centre = mean(values)
    total = 0
    for value in values:
        total = total + (value - centre) ** 2
    return total / len(values)
"""
TEXT = (
    "The lighthouse stood at the end of the long pier, and every evening its keeper climbed the iron "
    "stairs with a can of oil. He counted the steps, lit the lamp, and wrote down the hour in a book."
)
PROMPTS = {
    "repeat a text": f"{TEXT}\n\nThe same text once more:\n{TEXT[:30]}",
    "go on with code": f"{CODE}\n\n# The same two functions again, unchanged:\n{CODE[:18]}",
    "a story": "Once upon a time, in a small village by the sea, there lived",
}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--draft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    params = SamplingParams(max_tokens=given.tokens, ignore_eos=True)
    plain = Engine.load(given.model)
    choice = DraftModel(given.draft) if given.draft else PromptLookup()
    drafting = Engine.load(given.model, speculation=choice)
    print(f"{choice}, answers of {given.tokens} tokens")
    for name, prompt in PROMPTS.items():
        same = (
            plain.generate(prompt, params).token_ids == drafting.generate(prompt, params).token_ids
        )
        before, ratios = (drafting.counters.accepted, drafting.counters.drafted), []
        for _ in range(given.rounds):
            slow = seconds(lambda prompt=prompt: plain.generate(prompt, params))
            ratios.append(slow / seconds(lambda prompt=prompt: drafting.generate(prompt, params)))
        accepted = (drafting.counters.accepted - before[0]) // given.rounds
        drafted = (drafting.counters.drafted - before[1]) // given.rounds
        spread = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{name}: ratio {statistics.median(ratios):.2f} (of {spread}), "
            f"{accepted} of {drafted} drafts accepted, "
            f"{'the same ids' if same else 'OTHER IDS'}, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
