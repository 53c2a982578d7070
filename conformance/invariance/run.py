"""Plays and judges cells, and gathers what became of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch

from conformance.compiled_candidate import graphs_as_they_are
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.invariance.axes import AXES, Cell
from conformance.invariance.naive import Naive
from conformance.invariance.play import play
from conformance.invariance.scripts import Scripts
from conformance.invariance.verdict import Outcome, Verdict, judge
from conformance.process import Say
from engine import Engine
from engine.backends import eager
from engine.cache.store import Int8Store, Store


class Bench:
    """The engines, scripts and naive runs that cells share, each made once."""

    def __init__(self) -> None:
        self.engine = cache(self._engine)
        self.scripts = cache(self._scripts)
        self.naive = cache(self._naive)

    def outcome(self, cell: Cell) -> Outcome:
        """Plays a cell and judges it; an error of the engine's is a bug as well."""
        of = cell["model"], cell["dtype"], cell["mode"]
        engine = self.engine(*of, cell["compiled"] == "yes")
        naive = self.naive(*of, cell["cache"] == "int8")
        start = time.monotonic()
        try:
            found = judge(cell, play(cell, engine, self.scripts(cell["model"])), naive)
        except Exception as error:
            found = Outcome(cell, Verdict.BUG, torch.inf, 0, f"{type(error).__name__}: {error}")
        return replace(found, seconds=time.monotonic() - start)

    def _engine(self, model: str, dtype: str, mode: str, compiled: bool) -> Engine:
        invariant = mode == "batch_invariant"
        with graphs_as_they_are():
            return Engine.load(
                REPOSITORY_GOLDENS / model,
                dtype=dtype,
                batch_invariant=invariant,
                compiled=compiled,
            )

    def _scripts(self, model: str) -> Scripts:
        golden = Golden(REPOSITORY_GOLDENS / model)
        return Scripts.of(golden, golden.trace["logits"].shape[-1])

    def _naive(self, model: str, dtype: str, mode: str, int8: bool) -> Naive:
        decoder, scripts = self.engine(model, dtype, mode, False).decoder, self.scripts(model)
        store = Int8Store if int8 else Store
        if mode == "batch_invariant":  # its envelope is empty: the bits count
            return Naive(
                decoder, scripts, store, self.naive(model, dtype, "ordinary", int8).envelope
            )
        decoder.use(eager.attend)
        return Naive(decoder, scripts, store)


@dataclass(frozen=True)
class Row:
    """What became of the cells that have one value of an axis."""

    axis: str
    value: str
    outcomes: Sequence[Outcome]

    @property
    def worst(self) -> float:
        """The largest share of an allowance among them."""
        return max((outcome.worst for outcome in self.outcomes), default=0.0)

    def count(self, verdict: Verdict) -> int:
        return sum(outcome.verdict == verdict for outcome in self.outcomes)


@dataclass(frozen=True)
class Matrix:
    """The outcomes of cells, in the order in which they were played."""

    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def rows(self) -> list[Row]:
        """One for each value of each axis."""
        return [
            Row(axis, value, [o for o in self.outcomes if o.cell[axis] == value])
            for axis, values in AXES.items()
            for value in values
        ]

    @property
    def all(self) -> Row:
        return Row("all", "", self.outcomes)

    @property
    def bugs(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.verdict == Verdict.BUG]

    @property
    def exit_status(self) -> int:
        return 1 if self.bugs else 0

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep invariance --json`."""
        return {
            "verdict": "diverges" if self.bugs else "conforms",
            "cells": [
                {
                    "values": dict(zip(AXES, o.cell.values, strict=True)),
                    "verdict": o.verdict,
                    "worst": o.worst,
                    "rows": o.rows,
                    "said": o.said,
                    "seconds": round(o.seconds, 3),
                }
                for o in self.outcomes
            ],
            "axes": [
                {
                    "axis": row.axis,
                    "value": row.value,
                    "cells": len(row.outcomes),
                    **{verdict: row.count(verdict) for verdict in Verdict},
                    "worst": row.worst,
                }
                for row in self.rows
            ],
            "seconds": round(self.seconds, 1),
        }


def run_matrix(cells: Sequence[Cell], say: Say = lambda _: None) -> Matrix:
    """Plays all of these cells, in two processes, each on one thread; those of one naive run together."""
    start = time.monotonic()
    batches: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        batches.setdefault((cell["model"], cell["dtype"]), []).append(cell)
    found: dict[Cell, Outcome] = {}
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as pool:
        for done in as_completed(pool.submit(outcomes, batch) for batch in batches.values()):
            found |= {outcome.cell: outcome for outcome in done.result()}
            bugs = sum(outcome.verdict == Verdict.BUG for outcome in found.values())
            say(f"invariance: {len(found)} of {len(cells)} cells, {bugs} bugs")
    return Matrix([found[cell] for cell in cells], time.monotonic() - start)


def outcomes(cells: Iterable[Cell]) -> list[Outcome]:
    """Plays cells one after another, in this process."""
    torch.set_num_threads(1)
    bench = Bench()
    return [bench.outcome(cell) for cell in cells]
