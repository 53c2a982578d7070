"""A trial of one candidate on one golden: which operations are at fault, and what merely follows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from conformance.candidate import Candidate, Level
from conformance.golden import Golden
from conformance.judgement import (
    Disagreement,
    Finding,
    Judgement,
    Standing,
    disagreements,
    expert_ties,
    judge,
)
from conformance.lockstep import Walk, everywhere, graft_at, nowhere, walk
from engine.errors import RequestError


@dataclass(frozen=True)
class Culprit:
    """An operation whose own error, from the reference's inputs, leaves its envelope.

    `graft_confirms`: with the golden put in at the culprits alone, all that follows this one, up to
    the next culprit, came right; None where a part of a golden holds nothing that follows. There is no
    place where several operations may be at fault (`Finding.since`).
    """

    finding: Finding
    file: str | None
    line: int | None
    graft_confirms: bool | None

    @property
    def proof(self) -> str:
        """What the graft says, in words."""
        if self.graft_confirms is None:
            return "nothing behind it to confirm"
        return "confirmed by graft" if self.graft_confirms else "not confirmed by graft"

    @property
    def place(self) -> str | None:
        """Where the operation stands in the candidate's code, or since which probe the fault may lie."""
        if self.finding.since:
            return f"or an operation since {self.finding.since}"
        return f"{shorten(self.file)}:{self.line}" if self.file else None

    def __str__(self) -> str:
        place = f"  {self.place}" if self.place else ""
        return f"{self.finding}{place}  ({self.proof})"


def shorten(path: str) -> str:
    """Relative to the working folder where the file lies below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


@dataclass(frozen=True)
class Trial:
    """One candidate on one golden by one schedule.

    `own` and `whole` are the standings of the probes in the lockstep and in the free run, in the
    reference's order; `own` is empty below level L4.
    """

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
    own: tuple[Standing, ...]
    whole: tuple[Standing, ...]
    logits_outside: bool  # or never shown, where they should have been
    #: Tokens whose experts are a tie and are not shown, by which nothing is judged.
    unjudged: tuple[int, ...] = ()

    @property
    def worst(self) -> dict[str, tuple[str, float]]:
        """By kind of run, the probe nearest to its allowance and the share that it used."""
        runs = {"lockstep": self.own, "free": self.whole}
        nearest = {run: max(s, key=lambda x: x.worst) for run, s in runs.items() if s}
        return {run: (standing.probe, standing.worst) for run, standing in nearest.items()}

    @property
    def conforms(self) -> bool:
        bugs = [d for d in self.disagreements if not d.is_tie]
        return not (self.culprits or self.propagated or bugs)

    def __str__(self) -> str:
        """The verdict and what speaks for it, a line each: culprits, or what was outside freely."""
        found = [f"culprit  {c}" for c in self.culprits]
        found = found or [f"outside  {f}" for f in self.propagated]
        found += [f"{'tie' if d.is_tie else 'BUG'}  {d}" for d in self.disagreements]
        return "\n".join(
            [f"{'conforms' if self.conforms else 'diverges'}: {self.probes} probes", *found]
        )


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
    allowed, freely_allowed = (e.with_cache(candidate.cache_rounding) for e in (own, whole))
    free = walk(candidate, golden, dtype, nowhere, schedule, level)
    # What such a token changes in later ones, through their attention, is left to the envelope.
    ties = golden.expert_ties(whole, lambda p: level.offers(p) and candidate.offers(p))
    freely = judge(free.measurements, freely_allowed, golden, ties)
    locked = Walk()
    alone = Judgement((), ())
    if level >= Level.L4:
        # Behind a gap several operations err before a probe shows it: that is a run, not one operation.
        gaps = behind_gaps(golden.probes(level), candidate.offers)
        locked = walk(candidate, golden, dtype, everywhere, schedule, level)
        alone = judge(
            locked.measurements,
            lambda p: freely_allowed(p) if p in gaps else allowed(p),
            golden,
            ties,
        )
    guilty = sorted({finding.probe for finding in alone.outside}, key=golden.order)
    confirmed: dict[str, bool | None] = {}
    if guilty:
        proof = walk(candidate, golden, dtype, graft_at(guilty), schedule, level)
        if _reached_the_end(proof, golden, level):
            still = judge(proof.measurements, freely_allowed, golden, ties).outside
            confirmed = _confirmed(guilty, {f.probe for f in still}, golden, level)
    return Trial(
        case=golden.case,
        candidate=candidate.name,
        dtype=str(dtype).removeprefix("torch."),
        schedule=schedule,
        culprits=tuple(
            _culprit(f, candidate, confirmed.get(f.probe, False)) for f in alone.outside
        ),
        propagated=tuple(
            replace(f, propagated_from=_upstream(f, alone.outside, golden))
            for f in freely.outside
            if f.probe not in guilty
        ),
        disagreements=(
            *disagreements([c for c in free.choices if c.position not in ties], golden, whole),
            *expert_ties(free.expert_choices, golden, whole),
        ),
        skipped=tuple(p for p in golden.probes(level) if not candidate.offers(p)),
        probes=len({m.probe for m in free.measurements}),
        rows=sum(
            m.errors.largest.numel()
            for m in free.measurements + locked.measurements
            if m.errors is not None
        ),
        own=alone.standings,
        whole=freely.standings,
        logits_outside="logits" in {finding.probe for finding in freely.outside}
        or not _reached_the_end(free, golden, level),
        unjudged=tuple(sorted(ties)),
    )


def behind_gaps(order: Sequence[str], offers: Callable[[str], bool]) -> frozenset[str]:
    """The probes whose operation starts further back, as some before it are not shown.

    A gap reaches up to the end of its residual branch. Scores and weights make none where the
    context is shown: the noise was measured with kernels that do not form them, too.
    """
    behind = set()
    gap = False
    for probe in order:
        if not offers(probe):
            inside = probe.endswith((".scores", ".weights"))
            gap = gap or not (inside and offers(probe.rpartition(".")[0] + ".context"))
            continue
        if gap:
            behind.add(probe)
        if probe.endswith((".after_attn", ".out")) and not probe.endswith(
            (".attn.out", ".mlp.out")
        ):
            gap = False
    return frozenset(behind)


def _confirmed(
    guilty: Sequence[str], still_outside: Collection[str], golden: Golden, level: Level
) -> dict[str, bool | None]:
    """Whether nothing is outside behind each culprit, up to the next one, once all are grafted."""
    *_, last = golden.probes(level)
    nothing_follows = {last} - {"logits"}  # which end a whole golden, and all of it is inside then
    bounds = [golden.order(p) for p in guilty] + [math.inf]
    outside = [golden.order(p) for p in still_outside if p not in guilty]
    return {
        probe: None if probe in nothing_follows else not any(here < x < following for x in outside)
        for probe, here, following in zip(guilty, bounds, bounds[1:], strict=False)
    }


def _upstream(finding: Finding, culprits: Sequence[Finding], golden: Golden) -> tuple[str, ...]:
    """The culprits before a finding, nearest first: in the same step, or through the cache."""
    before = [
        c.probe
        for c in culprits
        if c.step < finding.step or golden.order(c.probe) < golden.order(finding.probe)
    ]
    return tuple(sorted(before, key=golden.order, reverse=True))


def _reached_the_end(run: Walk, golden: Golden, level: Level) -> bool:
    """Whether the last that the golden holds was shown and compared; below L3 there is nothing to expect."""
    last = golden.probes(level)[-1]
    shown = any(m.probe == last and m.errors is not None for m in run.measurements)
    return level < Level.L3 or shown


def _culprit(finding: Finding, candidate: Candidate, confirmed: bool | None) -> Culprit:
    try:
        place = None if finding.since else candidate.locate(finding.probe)
    except Exception:  # a place is a courtesy; the verdict stands without it
        place = None
    return Culprit(
        finding,
        file=place.file if place else None,
        line=place.line if place else None,
        graft_confirms=confirmed,
    )
