"""What a run of a server found: figures of each rate, as an object, as JSON, and in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conformance.bench.serving.load import Load, Step

SCHEMA = 1  # version of the JSON document
#: Seconds between two tokens of an answer that 99 of 100 are to keep, as the brief of the project promises.
PROMISE = 0.150


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that so many of them do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True)
class Spread:
    """Half of the times are at most `p50`, and all but one of a hundred at most `p99`; seconds."""

    p50: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(percentile(values, 0.5), percentile(values, 0.99))


@dataclass(frozen=True)
class Figures:
    """Of one rate. `in_flight` and `most_in_flight` are requests at once, memory is in bytes."""

    rate: float
    seconds: float
    requests: int
    outcomes: dict[str, int]
    first: Spread
    between: Spread
    tokens_per_second: float
    in_flight: float
    most_in_flight: int
    memory: list[tuple[float, int]]

    @classmethod
    def of(cls, step: Step) -> Figures:
        asked = step.asked
        start = min(one.due for one in asked)
        came = [moment for one in asked for moment in one.came]
        last = max([*came, start + step.seconds])
        stays = [(one.due, one.ended or last) for one in asked]
        return cls(
            rate=step.rate,
            seconds=step.seconds,
            requests=len(asked),
            outcomes=dict(Counter(one.outcome for one in asked)),
            first=Spread.of([one.first for one in asked if one.first is not None]),
            between=Spread.of([gap for one in asked for gap in one.between]),
            tokens_per_second=sum(one.tokens for one in asked) / (last - start),
            in_flight=sum(end - begin for begin, end in stays) / (last - start),
            most_in_flight=_most_at_once(stays),
            memory=step.memory,
        )

    @property
    def holds(self) -> bool:
        """Whether every request was answered, and the promise kept."""
        p99 = self.between.p99
        return set(self.outcomes) == {"done"} and p99 is not None and p99 <= PROMISE


def _most_at_once(stays: Sequence[tuple[float, float]]) -> int:
    moments = sorted([(begin, 1) for begin, _ in stays] + [(end, -1) for _, end in stays])
    most = present = 0
    for _, change in moments:
        present += change
        most = max(most, present)
    return most


@dataclass
class Served:
    """A whole run: figures by form and rate."""

    environment: dict[str, str]
    model: str
    load: Load
    forms: dict[str, list[Figures]]

    exit_status = 0

    def promise(self, form: str) -> str:
        """Up to which rate the promise is kept, and the most that was reached, in one sentence."""
        figures = self.forms[form]
        kept: list[Figures] = []
        for one in sorted(figures, key=lambda one: one.rate):
            if not one.holds:
                break
            kept.append(one)
        fastest = max(one.tokens_per_second for one in figures)
        limit = f"the most was {fastest:,.1f} tokens a second"
        of = f"{form}: {1e3 * PROMISE:g} ms between tokens at P99"
        if not kept:
            return f"{of} are not kept at any of these rates; {limit}"
        best = kept[-1]
        return (
            f"{of} are kept up to {best.rate:g} requests a second, {best.in_flight:.1f} at once on "
            f"average and {best.most_in_flight} at most; {limit}"
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep bench --serving --json`: seconds, bytes, tokens a second."""
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "model": self.model,
            "promise": PROMISE,
            "load": asdict(self.load),
            "forms": {
                name: {
                    "rates": [{**asdict(one), "holds": one.holds} for one in figures],
                    "says": self.promise(name),
                }
                for name, figures in self.forms.items()
            },
        }
