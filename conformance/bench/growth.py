"""Time against length: how long a step takes with so many tokens in view, a prompt of so many, so many answers at once.

A step reads all weights once, and the keys and values of everything in view: its time should be a line
whose height is bytes of weights over bandwidth and whose slope is bytes per token over bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from conformance.bench.forms import Form
from conformance.bench.limits import Limits, best_of
from conformance.bench.scenarios import Sizes, cut
from conformance.bench.work import Work
from conformance.bench.worker import Asked
from conformance.process import Say

STEPS = 16  # after each prompt, of which the median counts
PROMPT = 16  # tokens, of a batch's prompts


@dataclass(frozen=True)
class Line:
    """Seconds as height + slope * tokens in view, by least squares."""

    height: float
    slope: float


@dataclass(frozen=True)
class Point:
    """Seconds of a form at one size, and what the limits allow."""

    form: str
    size: int
    seconds: float
    limit: float


@dataclass(frozen=True)
class Growth:
    """Steps against tokens in view, prefills against their lengths, steps against answers at once.

    `lines` are those of the steps by form, `expected` what weights, cache and bandwidth make of them.
    """

    steps: list[Point]
    prefills: list[Point]
    batches: list[Point]
    lines: dict[str, Line]
    expected: dict[str, Line]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Asking:
    """Whom to ask, in turns, about texts of these ids."""

    workers: Mapping[str, Asked]
    machine: Asked
    forms: Sequence[Form]
    ids: Sequence[int]
    say: Say

    def everyone(self, warming: bool, question: str, **details: Any) -> dict[str, Any]:
        """What each form answers; only compiled ones have to warm up to a new size."""
        return {
            form.name: self.workers[form.name].ask(question, **details)
            for form in self.forms
            if form.is_compiled or not warming
        }


#: Seconds of the rounds by form and size.
Times = dict[tuple[str, int], list[float]]


def grow(
    asking: Asking, works: Mapping[str, Work], sizes: Sizes, context: int, rounds: int
) -> Growth:
    """Asks length by length and batch by batch; lengths beyond the context are cut to fit it."""
    lengths = sorted({min(length, context - STEPS - 1) for length in sizes.lengths})
    steps, prefills, batches = Times(), Times(), Times()
    limits = []
    for i in range(rounds + 1):
        limits.append(Limits(**asking.machine.ask("limits")))
        warming, turn = i == 0, "warming up" if i == 0 else f"round {i} of {rounds}"
        for length in lengths:
            asking.say(f"growth, {turn}: {length} tokens")
            prompt = cut(asking.ids, length)
            answers = asking.everyone(warming, "growth", prompt=prompt, n=STEPS)
            for form, said in ({} if warming else answers).items():
                prefills.setdefault((form, length), []).append(said["first"])
                steps.setdefault((form, length), []).append(median(said["steps"]))
        for batch in sizes.together:
            asking.say(f"growth, {turn}: {batch} answers at once")
            prompts = [cut(asking.ids, PROMPT, 5 * at) for at in range(batch)]
            answers = asking.everyone(warming, "decode", prompts=prompts, n=STEPS)
            for form, said in ({} if warming else answers).items():
                batches.setdefault((form, batch), []).append(said["seconds"] / STEPS)
    return _drawn_together(asking.forms, works, best_of(limits), steps, prefills, batches)


def _drawn_together(
    forms: Sequence[Form],
    works: Mapping[str, Work],
    best: Limits,
    steps: Times,
    prefills: Times,
    batches: Times,
) -> Growth:
    """Medians beside the limits, and the lines through the steps."""
    dtypes = {form.name: form.dtype for form in forms}

    def points(times: Times, todo: Callable[[Work, int], tuple[int, int]]) -> list[Point]:
        return [
            Point(form, size, median(rounds), best.seconds(*todo(works[form], size), dtypes[form]))
            for (form, size), rounds in times.items()
        ]

    # The median step has half of the others in view.
    found = points(steps, lambda work, length: work.decode(1, length + STEPS // 2))
    return Growth(
        found,
        points(prefills, lambda work, length: work.prefill(length)),
        points(batches, lambda work, batch: work.decode(batch, PROMPT + STEPS // 2)),
        {form.name: fitted([p for p in found if p.form == form.name]) for form in forms},
        {
            name: Line(work.weights / best.bandwidth, work.per_length / best.bandwidth)
            for name, work in works.items()
            if name in dtypes
        },
    )


def fitted(points: Sequence[Point]) -> Line:
    """The line of least squares through the points; level where there is one length alone."""
    n = len(points)
    mean_x = sum(p.size for p in points) / n
    mean_y = sum(p.seconds for p in points) / n
    spread = sum((p.size - mean_x) ** 2 for p in points)
    together = sum((p.size - mean_x) * (p.seconds - mean_y) for p in points)
    slope = together / spread if spread else 0.0
    return Line(mean_y - slope * mean_x, slope)
