"""One planted fault: a piece of the engine's source text, and what a mistaken author wrote instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`; `expected` lists the operations to blame, and no others.

    Operations are probes without layer numbers (`attn.q_rope`) or stages (`tokenizer.merge`),
    separated by spaces. `source` is a report of the fault (repository#issue), or the paper, file or
    library that it violates. `dtype` is the run in which the fault shows.
    """

    id: str
    family: str
    fault: str
    source: str
    file: str
    old: str
    new: str
    expected: str
    dtype: str = "float32"
