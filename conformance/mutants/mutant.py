"""One planted fault: a piece of the engine's source text, and what a mistaken author wrote instead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file`; `expected` lists the operations to blame, and no others.

    Operations are probes without layer numbers (`attn.q_rope`) or stages (`tokenizer.merge`),
    separated by spaces. `source` is a report of the fault (repository#issue), or the paper, file or
    library that it violates. `family` says which goldens judge it (`cases`, a pattern of names, where
    others are needed to see it), `dtype` the run in which it shows.
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
    cases: str | None = None


def fault(
    id: str,
    fault: str,
    source: str,
    file: str,
    old: str,
    new: str,
    expected: str,
    *,
    family: str = "llama",
    dtype: str = "float32",
    cases: str | None = None,
) -> Mutant:
    """A mutant as the catalogue writes it down: `file` lies below engine/."""
    return Mutant(id, family, fault, source, f"engine/{file}", old, new, expected, dtype, cases)


def knob(
    family: str,
    name: str,
    fault: str,
    source: str,
    file: str,
    old: str,
    new: str,
    expected: str,
    *,
    dtype: str = "float32",
    cases: str | None = None,
) -> Mutant:
    """A mutant of what a family sets away from the plain decoder, judged by that family's golden."""
    name = f"{family.replace('_', '-')}-{name}"
    return Mutant(name, family, fault, source, f"engine/{file}", old, new, expected, dtype, cases)


def decision(
    name: str, fault: str, source: str, file: str, old: str, new: str, expected: str
) -> Mutant:
    """A mutant of what is made of logits, which the golden `decisions` judges."""
    return Mutant(f"dec-{name}", "decisions", fault, source, f"engine/{file}", old, new, expected)
