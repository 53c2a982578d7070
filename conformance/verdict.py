"""From measurements to a verdict: which operations are at fault, what merely follows, what is a tie."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.candidate import Candidate, Level
from conformance.envelope import Envelope
from conformance.golden import Golden
from conformance.lockstep import Choice, Measurement, Walk, everywhere, graft_at, nowhere, walk
from engine.errors import RequestError


@dataclass(frozen=True)
class Finding:
    """A probe outside its envelope. `error` and `allowance` are relative to the row's scale.

    `position` and `head` are those of the worst row of the first step that failed; a `problem` is a
    failure that no comparison of numbers describes, such as a wrong shape.
    """

    probe: str
    step: int
    position: int | None
    head: int | None
    error: float | None
    allowance: float | None
    problem: str | None = None

    def __str__(self) -> str:
        parts = [self.probe, f"step {self.step}"]
        parts += [f"position {self.position}"] if self.position is not None else []
        parts += [f"head {self.head}"] if self.head is not None else []
        if self.error is not None and self.allowance is not None:
            parts.append(f"error {self.error:.2e}, allowed {self.allowance:.2e}")
        return "  ".join([*parts, self.problem or ""]).rstrip()


@dataclass(frozen=True)
class Culprit:
    """An operation whose own error, from the reference's inputs, leaves its envelope.

    `graft_confirms`: with the golden put in at the culprits alone, all that follows came right.
    """

    finding: Finding
    file: str | None
    line: int | None
    graft_confirms: bool

    def __str__(self) -> str:
        place = f"  {shorten(self.file)}:{self.line}" if self.file else ""
        proof = "confirmed by graft" if self.graft_confirms else "not confirmed by graft"
        return f"{self.finding}{place}  ({proof})"


def shorten(path: str) -> str:
    """Relative to the working folder where the file lies below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


@dataclass(frozen=True)
class Disagreement:
    """A greedy choice that differs: a tie if the reference's own margin is within the allowance."""

    position: int
    chosen: int
    expected: int
    margin: float
    allowance: float

    @property
    def is_tie(self) -> bool:
        return self.margin <= self.allowance


@dataclass(frozen=True)
class Trial:
    """One candidate on one golden by one schedule."""

    case: str
    candidate: str
    dtype: str
    schedule: tuple[int, ...]
    culprits: tuple[Culprit, ...]
    propagated: tuple[Finding, ...]
    disagreements: tuple[Disagreement, ...]
    skipped: tuple[str, ...]
    probes: int
    rows: int
    worst: Mapping[str, tuple[str, float]]  # kind of run -> probe and share of its allowance
    logits_error: float  # largest in the free run, relative to the row's scale
    logits_outside: bool  # or never shown, where they should have been

    @property
    def conforms(self) -> bool:
        bugs = [d for d in self.disagreements if not d.is_tie]
        return not (self.culprits or self.propagated or bugs)

    def __str__(self) -> str:
        """The verdict and what speaks for it, a line each: culprits, or what was outside freely."""
        found = [f"culprit  {c}" for c in self.culprits]
        found = found or [f"outside  {f}" for f in self.propagated]
        found += [
            f"{'tie' if d.is_tie else 'BUG'}  after position {d.position} it prefers {d.chosen}, "
            f"the reference {d.expected}"
            for d in self.disagreements
        ]
        return "\n".join(
            [f"{'conforms' if self.conforms else 'diverges'}: {self.probes} probes", *found]
        )


def judge(
    measurements: Iterable[Measurement], envelope: Envelope
) -> tuple[list[Finding], tuple[str, float] | None]:
    """Every probe that is outside, once, at the first step where it is; and the one nearest to it.

    The latter is the probe that used the largest share of its allowance, with that share.
    """
    found: dict[str, Finding] = {}
    nearest: tuple[str, float] | None = None
    for m in measurements:
        if m.errors is None:
            found.setdefault(m.probe, Finding(m.probe, m.step, None, None, None, None, m.problem))
            continue
        largest, rms = envelope.allowance(m.probe)
        shares = torch.maximum(m.errors.largest / largest, m.errors.rms / rms)
        share = float(shares.max())
        if share > 1 and m.probe not in found:
            found[m.probe] = _at_worst_row(m, shares, envelope)
        if nearest is None or share > nearest[1]:
            nearest = (m.probe, share)
    return list(found.values()), nearest


def _at_worst_row(m: Measurement, shares: Tensor, envelope: Envelope) -> Finding:
    assert m.errors is not None
    index = torch.unravel_index(shares.argmax(), shares.shape)
    by_rms = m.errors.largest[index] / envelope.allowance(m.probe)[0] <= 1
    token = int(index[-1])
    return Finding(
        probe=m.probe,
        step=m.step,
        position=token if m.probe.startswith("cache.") else m.start + token,
        head=int(index[1]) if len(index) == 3 else None,
        error=float((m.errors.rms if by_rms else m.errors.largest)[index]),
        allowance=envelope.allowance(m.probe)[1 if by_rms else 0],
    )


def disagreements(
    choices: Sequence[Choice], golden: Golden, envelope: Envelope
) -> list[Disagreement]:
    """Judges each differing choice by the golden's margin between the two tokens concerned."""
    result = []
    for choice in choices:
        row = golden.truth("logits", choice.position, choice.position + 1)[0]
        scale = float(row.abs().max())
        known = 0 <= choice.chosen < len(row)  # a wider vocabulary has tokens that are never right
        margin = float(row[choice.expected] - row[choice.chosen]) / scale if known else math.inf
        # Both logits may be off, in opposite directions.
        allowance = 2 * envelope.allowance("logits")[0]
        result.append(
            Disagreement(choice.position, choice.chosen, choice.expected, margin, allowance)
        )
    return result


def trial(
    candidate: Candidate,
    golden: Golden,
    dtype: torch.dtype,
    schedule: Sequence[int] | None = None,
    level: Level = Level.L5,
) -> Trial:
    """Lockstep run for the culprits, free run for what users see, graft run for the proof.

    Raises RequestError at level L0: without ids there is nothing that a trial could compare.
    """
    level = min(level, candidate.level)
    if level == Level.L0:
        raise RequestError(
            f"{candidate.name} shows text alone, and a trial compares ids at least: offer level L1"
        )
    schedule = tuple(schedule or golden.schedule)
    own, whole = golden.envelope("lockstep", dtype), golden.envelope("free", dtype)
    free = walk(candidate, golden, dtype, nowhere, schedule, level)
    outside, nearest_free = judge(free.measurements, whole)
    locked = Walk()
    culprits: list[Finding] = []
    nearest_own = None
    if level >= Level.L4:
        locked = walk(candidate, golden, dtype, everywhere, schedule, level)
        culprits, nearest_own = judge(locked.measurements, own)
    guilty = {finding.probe for finding in culprits}
    confirmed = False
    if guilty:
        proof = walk(candidate, golden, dtype, graft_at(guilty), schedule, level)
        still_outside = {f.probe for f in judge(proof.measurements, whole)[0]}
        confirmed = still_outside <= guilty and _reached_the_end(proof, level)
    worst = {"lockstep": nearest_own, "free": nearest_free}
    expected = golden.probes(level)
    logits = [m for m in free.measurements if m.probe == "logits"]
    return Trial(
        case=golden.case,
        candidate=candidate.name,
        dtype=str(dtype).removeprefix("torch."),
        schedule=schedule,
        culprits=tuple(_culprit(f, candidate, confirmed) for f in culprits),
        propagated=tuple(f for f in outside if f.probe not in guilty),
        disagreements=tuple(disagreements(free.choices, golden, whole)),
        skipped=tuple(p for p in expected if not candidate.offers(p)),
        probes=len({m.probe for m in free.measurements}),
        rows=sum(
            m.errors.largest.numel()
            for m in free.measurements + locked.measurements
            if m.errors is not None
        ),
        worst={run: share for run, share in worst.items() if share is not None},
        logits_error=max(
            (float(m.errors.largest.max()) for m in logits if m.errors is not None),
            default=float("inf"),
        ),
        logits_outside="logits" in {finding.probe for finding in outside}
        or not _reached_the_end(free, level),
    )


def _reached_the_end(run: Walk, level: Level) -> bool:
    """Whether logits were shown and compared; below L3 there are none to expect."""
    shown = any(m.probe == "logits" and m.errors is not None for m in run.measurements)
    return level < Level.L3 or shown


def _culprit(finding: Finding, candidate: Candidate, confirmed: bool) -> Culprit:
    place = candidate.locate(finding.probe)
    return Culprit(
        finding,
        file=place.file if place else None,
        line=place.line if place else None,
        graft_confirms=confirmed,
    )
