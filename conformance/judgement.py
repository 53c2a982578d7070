"""From measurements to findings: what is outside its envelope, and which choices that differ are ties."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.envelope import Envelope, largest_at
from conformance.golden import Golden
from conformance.lockstep import Choice, Element, ExpertChoice, Measurement


@dataclass(frozen=True)
class Finding:
    """A probe outside its envelope. `error` and `allowance` are relative to the row's scale.

    `position` and `head` are those of the worst row of the first step that failed, `kind` says which
    error of the row it was (see `envelope`), `worst` shows its elements; a `problem` is a failure that no
    comparison of numbers describes, such as a wrong shape. `propagated_from` are the culprits upstream.
    `since` is set where others may be at fault as well: all that comes after that probe up to this one,
    of which the golden or the candidate shows nothing.
    """

    probe: str
    step: int
    position: int | None = None
    head: int | None = None
    error: float | None = None
    allowance: float | None = None
    kind: str | None = None
    problem: str | None = None
    worst: tuple[Element, ...] = ()
    propagated_from: tuple[str, ...] = ()
    since: str | None = None

    def __str__(self) -> str:
        parts = [self.probe, f"step {self.step}"]
        parts += [f"position {self.position}"] if self.position is not None else []
        parts += [f"head {self.head}"] if self.head is not None else []
        if self.error is not None and self.allowance is not None:
            kind = "error" if self.kind == "largest" else f"error {self.kind}"
            parts.append(f"{kind} {self.error:.2e}, allowed {self.allowance:.2e}")
        return "  ".join([*parts, self.problem or ""]).rstrip()


@dataclass(frozen=True)
class Disagreement:
    """A choice that differs: a tie if the reference's own margin is within the allowance.

    At `logits` the choice is of a token, else of a set of experts.
    """

    position: int
    chosen: int | tuple[int, ...]
    expected: int | tuple[int, ...]
    margin: float
    allowance: float
    probe: str = "logits"

    @property
    def is_tie(self) -> bool:
        return self.margin <= self.allowance

    def __str__(self) -> str:
        if isinstance(self.chosen, int):
            place, what = "after", f"token {self.chosen}"
        else:
            place, what = f"{self.probe}: at", f"experts {self.chosen}"
        return f"{place} position {self.position} it prefers {what}, the reference {self.expected}"


@dataclass(frozen=True)
class Standing:
    """How a probe stood in one run: the share of its allowance that it used, above 1 being outside.

    `shares` is [heads, positions] (one head where the probe has none): the largest over batch and
    steps, NaN where nothing was measured. Infinite where a `problem` stopped the comparison.
    """

    probe: str
    shares: Tensor
    problem: str | None = None

    @property
    def worst(self) -> float:
        return math.inf if self.problem else float(self.shares.nan_to_num(0.0).max())


@dataclass(frozen=True)
class Judgement:
    """Every probe that is outside, once, at the first step where it is; and how all of them stood."""

    outside: tuple[Finding, ...]
    standings: tuple[Standing, ...]


def judge(
    measurements: Iterable[Measurement],
    envelope: Callable[[str], Envelope],
    golden: Golden,
    unjudged: Collection[int] = (),
) -> Judgement:
    """Holds each measurement against the envelope that is its probe's, but for `unjudged` tokens."""
    found: dict[str, Finding] = {}
    standings: dict[str, Standing] = {}
    for m in measurements:
        if m.errors is None:
            found.setdefault(m.probe, Finding(m.probe, m.step, problem=m.problem))
            standings[m.probe] = Standing(m.probe, torch.full((1, 1), torch.inf), m.problem)
            continue
        shares = envelope(m.probe).shares(m.probe, m.errors)
        here = range(m.start, m.start + shares.shape[-1])
        shares[..., [here.index(token) for token in unjudged if token in here]] = torch.nan
        known = shares.nan_to_num(0.0, posinf=torch.inf)
        if float(known.max()) > 1 and m.probe not in found:
            found[m.probe] = _at_worst_row(m, known, envelope(m.probe), unjudged)
        before = standings.get(m.probe)
        if before is None or before.problem is None:
            total = len(golden.ids)
            standings[m.probe] = _standing(m, shares, total, before)
    by_order = sorted(standings.values(), key=lambda s: golden.order(s.probe))
    return Judgement(tuple(found.values()), tuple(by_order))


def _standing(m: Measurement, shares: Tensor, total: int, before: Standing | None) -> Standing:
    """The standing before, with one more step's shares [B, heads..., T] at their positions."""
    heads = shares.amax(0).reshape(-1, shares.shape[-1]).float().cpu()
    grid = torch.full((len(heads), total), torch.nan) if before is None else before.shares.clone()
    here = slice(m.start, m.start + heads.shape[1])
    grid[:, here] = grid[:, here].fmax(heads)
    return Standing(m.probe, grid)


def _at_worst_row(
    m: Measurement, shares: Tensor, envelope: Envelope, unjudged: Collection[int]
) -> Finding:
    assert m.errors is not None
    furthest = (
        m.start + largest_at(m.errors.largest)[-1]
    )  # of all rows, of which the elements are kept
    row = largest_at(shares)
    kinds = envelope.kinds(m.probe, m.errors)
    kind = max(kinds, key=lambda k: float(kinds[k][0][row] / kinds[k][1][row]))
    error, allowed = kinds[kind]
    return Finding(
        probe=m.probe,
        step=m.step,
        position=m.start + int(row[-1]),
        head=int(row[1]) if len(row) == 3 else None,
        error=float(error[row]),
        allowance=float(allowed[row]),
        kind=kind,
        worst=() if furthest in unjudged else m.elements(),
        since=m.since,
    )


def disagreements(
    choices: Sequence[Choice], golden: Golden, envelope: Envelope
) -> list[Disagreement]:
    """Judges each differing choice by the golden's margin between the two tokens concerned."""
    result = []
    for choice in choices:
        row = golden.truth("logits", choice.position, choice.position + 1)[0]
        scale = float(row.abs().max())
        # A wider vocabulary has tokens that are never right; what is not kept is far from the best.
        places = golden.place(choice.expected), golden.place(choice.chosen)
        best, chosen = (-math.inf if at is None else float(row[at]) for at in places)
        margin = (best - chosen) / scale
        # Both logits may be off, in opposite directions.
        allowance = 2 * envelope.allowance("logits")
        result.append(
            Disagreement(choice.position, choice.chosen, choice.expected, margin, allowance)
        )
    return result


def expert_ties(
    choices: Sequence[ExpertChoice], golden: Golden, envelope: Envelope
) -> list[Disagreement]:
    """The differing choices of experts that the router's noise explains; others are findings."""
    judged = [
        Disagreement(
            c.position,
            c.chosen,
            c.expected,
            margin=float(golden.expert_margins(c.probe, c.position, c.position + 1)),
            allowance=envelope.allowance(c.probe),
            probe=c.probe,
        )
        for c in choices
    ]
    return [d for d in judged if d.is_tie]
