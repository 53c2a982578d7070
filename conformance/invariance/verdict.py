"""From what a cell's requests were shown to a verdict: the same bits, the same but for rounding, a tie, a bug."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from conformance.envelope import row_errors
from conformance.invariance.axes import Cell
from conformance.invariance.naive import Naive, Reference
from conformance.invariance.play import Dictated, Played


class Verdict(StrEnum):
    """From the best to the worst; a cell has the worst of its rows."""

    BITWISE = "BITWISE"  # every logit has the bits of the naive run's
    WITHIN = "WITHIN"  # within the envelope of legal re-orderings
    TIE = "TIE"  # a greedy token or a set of experts differs, and its margin explains it
    BUG = "BUG"


@dataclass(frozen=True)
class Outcome:
    """What became of one cell: `worst` is the largest share of the allowance, of `rows` logits compared.

    `said` gives the reason why it is no better.
    """

    cell: Cell
    verdict: Verdict
    worst: float
    rows: int
    said: str
    seconds: float = 0.0


def judge(cell: Cell, played: Played, naive: Naive) -> Outcome:
    """Holds every row of logits against the naive run's, and every greedy token and set of experts."""
    found = [_judge(request, naive) for request in played.requests]
    worst = max(share for _, share, _ in found)
    rows = sum(len(request.rows) for request in played.requests)
    verdict, _, said = max(found, key=lambda one: list(Verdict).index(one[0]))
    if cell["mode"] == "batch_invariant" and verdict in (Verdict.WITHIN, Verdict.TIE):
        verdict, said = Verdict.BUG, f"the bits differ, {worst:.2g} of the allowance"
    if played.unexercised:
        verdict, said = Verdict.BUG, f"nothing was tried: {played.unexercised}"
    return Outcome(cell, verdict, worst, rows, said)


def _judge(request: Dictated, naive: Naive) -> tuple[Verdict, float, str]:
    """The verdict on one request, its largest share, and why."""
    reference = naive.references[request.script]
    positions = torch.tensor([position for position, _ in request.rows])
    got = torch.stack([logits for _, logits in request.rows])
    expected = reference.logits[positions]
    if torch.equal(got, expected):
        return Verdict.BITWISE, 0.0, ""
    excused, flip = _other_experts(request, reference)
    if flip and excused is None:
        return Verdict.BUG, torch.inf, flip
    shares = naive.envelope.shares("logits", row_errors(got[None], expected))[0]
    shares = shares.nan_to_num(torch.inf)
    counted = positions < (len(reference.logits) if excused is None else excused)
    worst = float(shares[counted].max()) if counted.any() else 0.0
    if worst > 1:
        first = int(positions[counted & (shares > 1)].min())
        return Verdict.BUG, worst, f"outside at position {first} of {len(reference.logits)}"
    tie = _greedy_tie(got[counted], expected[counted], naive)
    if tie is not None:
        return tie, worst, "another greedy token"
    if flip:
        return Verdict.TIE, worst, flip
    return Verdict.WITHIN, worst, ""


def _other_experts(request: Dictated, reference: Reference) -> tuple[int | None, str]:
    """The first position whose experts differ for the last bits' sake; None where bits do not explain it."""
    order = list(reference.experts)
    for position, probe, chosen in sorted(
        request.experts, key=lambda seen: (seen[0], order.index(seen[1]))
    ):
        if not torch.equal(chosen, reference.experts[probe][position]):
            flip = f"other experts at position {position}, {probe}"
            return (position if reference.near[probe][position] else None), flip
    return None, ""


def _greedy_tie(got: Tensor, expected: Tensor, naive: Naive) -> Verdict | None:
    """Judges the rows whose best token is another, by the naive run's margin between the two."""
    chosen, best = got.argmax(-1, keepdim=True), expected.argmax(-1, keepdim=True)
    differs = (chosen != best)[:, 0]
    if not differs.any():
        return None
    rows = expected[differs].double()
    margins = rows.gather(-1, best[differs]) - rows.gather(-1, chosen[differs])
    # Both logits may be off, in opposite directions.
    allowed = 2 * naive.envelope.allowance("logits") * rows.abs().amax(-1, keepdim=True)
    return Verdict.TIE if bool((margins <= allowed).all()) else Verdict.BUG
