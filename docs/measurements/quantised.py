"""What weights of 8 and of 4 bits cost and save: bytes, perplexity, choices, and the speed of decoding.

    python docs/measurements/quantised.py [--tokens 32] [--rounds 5] [--text 1024] [--eager]

smollm2-135m, on the text that `answers-smollm2-135m` is about; prints tables in Markdown. All forms are loaded
at once and decode in turns, round by round, so that what disturbs one disturbs its neighbours: read the
ratios, medians over the rounds of the time of float32, eager, in that round over the form's own.
`--eager` leaves out what has to be compiled first, which takes a minute for each form.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from conformance.answers import Answers
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine

MODEL = "smollm2-135m"
KINDS = (None, "int8", "int4")
PROMPT = 16  # tokens
Form = tuple[str, str | None, bool]  # dtype, quantization, compiled


def weight_bytes(engine: Engine) -> int:
    """What the weights take, each storage once."""
    tensors = (*engine.decoder.parameters(), *engine.decoder.buffers())
    return sum(
        {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values()
    )


def perplexity(logits: Tensor, ids: list[int]) -> float:
    following = torch.tensor(ids[1:])
    return float(torch.nn.functional.cross_entropy(logits[:-1], following).exp())


def accuracy(ids: list[int]) -> None:
    print(
        "| dtype | weights | bytes | perplexity | same choice as float32 |\n|---|---|---|---|---|"
    )
    choices = None
    for dtype in ("float32", "bfloat16"):
        for kind in KINDS:
            engine = Engine.load(MODEL, dtype=dtype, quantization=kind)
            logits = engine.logits(ids, chunk=256)
            choices = logits.argmax(-1) if choices is None else choices
            same = int((logits.argmax(-1) == choices).sum())
            row = f"{weight_bytes(engine):,} | {perplexity(logits, ids):.3f} | {same} of {len(ids)}"
            print(f"| {dtype} | {kind or 'as they are'} | {row} |", flush=True)


@torch.inference_mode()
def seconds(engine: Engine, ids: list[int], tokens: int) -> float:
    """Of the median step, after a prompt."""
    cache = engine.new_cache(len(ids) + tokens)
    token = int(engine.prefill(ids, cache).argmax())
    steps = []
    for _ in range(tokens):
        start = time.perf_counter()
        token = int(engine.decode(token, cache).argmax())
        steps.append(time.perf_counter() - start)
    return median(steps)


def speed(
    ids: list[int], tokens: int, rounds: int, dtypes: tuple[str, ...], compiled: bool
) -> None:
    forms: list[Form] = [
        (dtype, kind, graph)
        for graph in ((False, True) if compiled else (False,))
        for dtype in dtypes
        for kind in KINDS
    ]
    engines = {
        (dtype, kind, graph): Engine.load(MODEL, dtype=dtype, quantization=kind, compiled=graph)
        for dtype, kind, graph in forms
    }
    for engine in engines.values():  # compiles, and touches every page
        seconds(engine, ids, 2)
    taken: dict[Form, list[float]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, engine in engines.items():
            taken[form].append(seconds(engine, ids, tokens))
    first = taken[forms[0]]
    print("\n| dtype | weights | steps | ms a token | times float32 eager |\n|---|---|---|---|---|")
    for (dtype, kind, graph), times in taken.items():
        ratio = median(a / b for a, b in zip(first, times, strict=True))
        how = "compiled" if graph else "eager"
        row = f"{how} | {1000 * median(times):.1f} | {ratio:.2f}"
        print(f"| {dtype} | {kind or 'as they are'} | {row} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--text", type=int, default=1024, help="tokens of it; 0 measures speed alone"
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--eager", action="store_true")
    asked = parser.parse_args()
    ids = Answers(REPOSITORY_GOLDENS / f"answers-{MODEL}").prompt(max(asked.text, PROMPT))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    if asked.text:
        accuracy(ids)
    speed(ids[:PROMPT], asked.tokens, asked.rounds, tuple(asked.dtypes), not asked.eager)


if __name__ == "__main__":
    main()
