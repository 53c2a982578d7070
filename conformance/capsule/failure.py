"""What a capsule must show again, and the fewest tokens and steps in which an engine shows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from conformance.judgement import Finding
from conformance.verdict import Trial

Schedule = tuple[int, ...]

_EXHAUSTIVE = 4  # tokens up to which every shape of a schedule is tried before the search halves


@dataclass(frozen=True)
class Failure:
    """The first thing that a trial found: a culprit, a probe outside freely, or a wrong choice.

    `problem` is the finding's, without its numbers: a failure by comparison is not the same as one by
    shape. `finding` is None for a choice.
    """

    kind: Literal["culprit", "outside", "choice"]
    probe: str
    problem: str | None = None
    finding: Finding | None = None

    def shown_by(self, trial: Trial, probe: str | None = None) -> bool:
        """Whether a trial shows it, at `probe` if that is its name there."""
        probe = probe or self.probe
        match self.kind:
            case "culprit":
                found = [c.finding for c in trial.culprits]
            case "outside":
                found = list(trial.propagated)
            case "choice":
                return any(not d.is_tie for d in trial.disagreements)
        return any(f.probe == probe and _kind(f.problem) == self.problem for f in found)


def failure_of(trial: Trial) -> Failure:
    """The first failure of a trial that does not conform."""
    if trial.culprits:
        finding = trial.culprits[0].finding
        return Failure("culprit", finding.probe, _kind(finding.problem), finding)
    if trial.propagated:
        finding = trial.propagated[0]
        return Failure("outside", finding.probe, _kind(finding.problem), finding)
    return Failure("choice", "logits")


def _kind(problem: str | None) -> str | None:
    """A problem without its numbers: shapes, positions and lines differ in what was cut.

    Values that are not finite are wrong values: memory that nobody filled shows either.
    """
    if problem is None or problem.startswith("is not finite"):
        return None
    return re.sub(r"[\d.,() ]+", " ", problem)


def shortest(original: Schedule, shows: Callable[[Schedule], bool]) -> Schedule:
    """The fewest tokens, in the fewest steps, that `shows` is true of; `original` shows it.

    Short prefixes are tried in every shape of two steps or all single; longer ones by halving, as
    more of the same steps never hide what a prefix of them shows. Then the steps are joined.
    """
    total = sum(original)
    for count in range(1, min(total, _EXHAUSTIVE) + 1):
        for schedule in _shapes(count):
            if shows(schedule):
                return schedule
    hidden, shown = min(total, _EXHAUSTIVE), total
    while shown - hidden > 1:
        middle = (hidden + shown) // 2
        if shows(_prefix(original, middle)):
            shown = middle
        else:
            hidden = middle
    found = _prefix(original, shown)
    joined = [(shown,), (shown - 1, 1)] if shown > 1 else []
    return next((s for s in joined if len(s) < len(found) and shows(s)), found)


def _shapes(count: int) -> Iterator[Schedule]:
    yield (count,)
    for first in range(count - 1, 0, -1):
        yield (first, count - first)
    if count > 2:
        yield (1,) * count


def _prefix(schedule: Sequence[int], count: int) -> Schedule:
    steps = []
    for size in schedule:
        if count > 0:
            steps.append(min(size, count))
            count -= size
    return tuple(steps)
