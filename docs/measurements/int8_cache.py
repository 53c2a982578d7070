"""What an int8 cache costs: errors of what it keeps, of logits, of choices, of perplexity; and its bytes.

    python docs/measurements/int8_cache.py

The tiny models of the goldens on their own ids, then smollm2-135m on the first 1,024 tokens of the text that
`answers-smollm2-135m` is about. Prints a table in Markdown. Errors are relative to the largest number of a row, the other side of a
comparison is the same engine, whose cache keeps everything.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from conformance.answers import Answers
from conformance.envelope import row_errors
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest
from conformance.goldens import inventory
from engine import Engine
from engine.cache import cache_bytes, store_named
from engine.cache.store import to_int8


def with_scale(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What is read of rows [..., width] whose scale is kept in `dtype`; numbers go by that very scale."""
    scale = to_int8(rows)[1].to(dtype).float()
    return (rows / scale).round().clamp(-127, 127) * scale


def kept_errors(engine: Engine, ids: list[int]) -> dict[str, float]:
    """The worst row errors of keys and values, by the dtype of the scale."""
    seen = engine.trace(ids)
    rows = [value for probe, value in seen.items() if probe.startswith("cache.")]
    return {
        str(dtype).removeprefix("torch."): max(
            float(row_errors(with_scale(r, dtype), r).largest.max()) for r in rows
        )
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    }


def perplexity(logits: Tensor, ids: list[int]) -> float:
    following = torch.tensor(ids[1:])
    return float(torch.nn.functional.cross_entropy(logits[:-1], following).exp())


def compare(model: str | Path, ids: list[int]) -> list[str]:
    """A row of the table: worst and median row error of logits, equal choices, perplexities, bytes."""
    plain = Engine.load(model, backend="eager")
    small = Engine.load(model, backend="eager", cache_dtype="int8")
    before, after = plain.logits(ids), small.logits(ids)
    errors = row_errors(after, before).largest
    same = int((before.argmax(-1) == after.argmax(-1)).sum())
    chunked = small.logits(ids, chunk=7)
    cut = float(row_errors(chunked, after).largest.max())
    layouts = plain.new_cache(len(ids)).layouts
    bytes_ = [
        cache_bytes(plain.spec, layouts, torch.float32, store_named(name)) / len(ids)
        for name in (None, "int8")
    ]
    return [
        f"{errors.max():.1e}",
        f"{errors.median():.1e}",
        f"{cut:.1e}",
        f"{same} of {len(ids)}",
        f"{perplexity(before, ids):.3f}",
        f"{perplexity(after, ids):.3f}",
        f"{bytes_[0]:,.0f}",
        f"{bytes_[1]:,.0f}",
        *(f"{error:.2e}" for error in kept_errors(plain, ids).values()),
    ]


def main() -> None:
    head = "model | logits, worst | median | in chunks of 7 | same choice | perplexity | int8 |"
    head += " bytes a token | int8 | kept, scale float32 | float16 | bfloat16"
    print(f"| {head} |")
    print("|" + "---|" * (head.count("|") + 1))
    for folder in inventory(REPOSITORY_GOLDENS):
        if read_manifest(folder)["kind"] == "model" and (folder / "model.safetensors").exists():
            print(
                "|", " | ".join([folder.name, *compare(folder, Golden(folder).ids.tolist())]), "|"
            )
    ids = Answers(REPOSITORY_GOLDENS / "answers-smollm2-135m").prompt(1024)
    print("|", " | ".join(["smollm2-135m", *compare("smollm2-135m", ids)]), "|")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
