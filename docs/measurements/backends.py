"""Attention backends beside each other: `python docs/measurements/backends.py [ROUNDS]`.

One layer's attention of SmolLM2-135M (9 query heads, 3 key/value heads, 64 numbers each) by every kernel,
in turns; the medians as shares of sdpa's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from no_waste import in_turns

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

#: New tokens, and tokens before them.
PASSES = {
    "prompt of 512": (512, 0),
    "prompt of 2048": (2048, 0),
    "512 behind 1536": (512, 1536),
    "1 behind 511": (1, 511),
    "1 behind 2047": (1, 2047),
}


@torch.inference_mode()
def main() -> None:
    from engine.backends import BACKENDS
    from engine.mask import View
    from tests.engine.test_attention import Scores

    rounds = int(sys.argv[1]) if sys.argv[1:] else 15
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {rounds} rounds")
    print(f"| dtype | pass | sdpa, ms | {' | '.join(BACKENDS)} |")
    print("|---|---|---|" + len(BACKENDS) * "---|")
    for dtype in (torch.float32, torch.bfloat16):
        for name, (new, old) in PASSES.items():
            q = torch.randn(1, 9, new, 64, dtype=dtype)
            k, v = torch.randn(2, 1, 3, old + new, 64, dtype=dtype)
            positions = torch.arange(old + new)[None]
            view, scores = View(positions[:, old:], positions, None), Scores(64**-0.5)
            calls = [
                lambda known=known, q=q, k=k, v=v, view=view, scores=scores: known.attend(
                    q, k, v, view, scores
                )
                for known in BACKENDS.values()
            ]
            times = dict(zip(BACKENDS, in_turns(calls, rounds), strict=True))
            shares = " | ".join(f"{time / times['sdpa']:.2f}" for time in times.values())
            print(f"| {str(dtype)[6:]} | {name} | {times['sdpa']:.2f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
