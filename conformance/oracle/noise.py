"""What may not count as an error: the noise of legal re-orderings, and the scale of rows that cancel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor

from conformance.candidate import Tap, over_keys
from conformance.envelope import Noise
from conformance.experts import is_expert_choice
from conformance.golden import Golden
from conformance.lockstep import HandOn, Walk, everywhere, nowhere, walk
from conformance.oracle.model import Oracle, knows_sdpa
from conformance.reorder import PLAIN, Variant
from engine.errors import LockstepError

Progress = Callable[[str], None]

#: The legal re-orderings that make up the noise.
ENSEMBLE: tuple[Variant, ...] = (
    PLAIN,
    Variant(threads=2),
    Variant(attention="sdpa"),
    Variant(attention="sdpa", threads=2, batch=3),
    Variant(batch=4),
    Variant(chunk=5),
    Variant(pad=3, batch=2),
    Variant(split_k=2),
    Variant(split_k=4),
    Variant(permute=1),
    Variant(permute=2, batch=2, attention="sdpa"),
    Variant(permute=3, chunk=8, threads=2),
)

#: How the rows that nearly cancel are found: relative size and number of the nudges.
NUDGE = 1e-4
NUDGES = 8
TOKENS_AT_ONCE = 512  # of all nudges that run side by side: scores grow with the square of a prompt
_INSIDE = (".attn.scores", ".attn.weights")
SMALL = 1.05  # more than this beside its truth, and a row has a scale of its own


class _Nudges:
    """A tap that hands on the truth, each number a little larger or smaller, and sums what that moves.

    Each row of the batch is nudged on its own.
    """

    def __init__(self, golden: Golden, seeds: Sequence[int]) -> None:
        self.golden = golden
        self.generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        self.moved: dict[str, list[Tensor]] = {}

    def at(self, start: int, stop: int) -> Tap:
        def tap(probe: str, value: Tensor) -> Tensor:
            if probe not in self.golden:
                return value
            truth = self.golden.truth(probe, start, stop)
            if is_expert_choice(probe):
                return truth.expand_as(value)
            kept = self.golden.kept(probe, value)
            off = (kept - truth).nan_to_num(0.0) / NUDGE  # masked places: -inf less itself
            squares = off.square().sum(0)
            if probe.endswith((".scores", ".weights")):
                squares = torch.nn.functional.pad(squares, (0, len(self.golden.ids) - stop))
            parts = self.moved.setdefault(probe, [])
            if over_keys(probe):
                parts.clear()
            parts.append(squares)
            if kept is not value:  # nothing follows a part of the logits
                return value
            signs = [torch.randint(0, 2, truth.shape, generator=g) * 2 - 1 for g in self.generators]
            return truth * (1 + NUDGE * torch.stack(signs))

        return tap


def scales(golden: Golden, model: Any) -> dict[str, Tensor]:
    """Row scales of the probes that have rows whose truth is smaller than what they are made of.

    A score is a sum of products that may cancel, and a row with one visible key is such a score alone:
    its rounding error is small beside the products, not beside the score. How much a row moves when
    the numbers it is made of are nudged says what the error is to be held against.
    """
    golden.load()
    squares: dict[str, Tensor] = {}
    at_once = min(NUDGES, max(1, TOKENS_AT_ONCE // len(golden.ids)))
    for first in range(0, NUDGES, at_once):
        seeds = range(first, min(first + at_once, NUDGES))
        nudges = _Nudges(golden, seeds)
        oracle = Oracle(model, Variant(batch=len(seeds)))
        oracle.begin(len(golden.ids))
        start = 0
        for size in golden.schedule:
            stop = start + size
            oracle.step(golden.ids[start:stop], nudges.at(start, stop))
            start = stop
        for probe, parts in nudges.moved.items():
            drawn = torch.cat(parts, dim=-2)
            squares[probe] = squares[probe] + drawn if probe in squares else drawn
    found = {}
    for probe, total in squares.items():
        moves = (total / NUDGES).sqrt().amax(-1)
        truth = golden.trace[probe]
        plain = truth.masked_fill(truth == -torch.inf, 0.0).abs().amax(-1)
        if (moves > SMALL * plain).any():
            found[probe] = torch.maximum(moves, plain).float()
    return found


def quick(chunk: int | None) -> tuple[Variant, ...]:
    """Few runs, for goldens made on the spot: they serve trials on a CPU with such chunks alone.

    One wide run stands for many orders of sums; the kernels as they are err most where rows are few.
    """
    return (
        Variant(permute=1, batch=8, each=True, chunk=chunk),
        Variant(chunk=chunk),
        Variant(chunk=chunk, attention="sdpa"),
        Variant(other_kernels=True, fused=True, batch=8, chunk=chunk),
    )


def ensemble(golden: Golden, model: Any, variants: Sequence[Variant] = ENSEMBLE) -> list[Variant]:
    """The re-orderings that are legal for this model: some know no chunks, some no other attention.

    For these, one that fuses scores and softmax is imitated: candidates may have such a kernel.
    """
    legal = [v for v in variants if not (golden.whole_prompts and v.chunk)]
    if knows_sdpa(model):
        return legal
    return [
        replace(v, attention="eager", fused=True) if v.attention == "sdpa" else v for v in legal
    ]


def noise(
    golden: Golden, model: Any, dtype: torch.dtype, variants: Sequence[Variant], progress: Progress
) -> dict[str, Any]:
    """Noise of the variants in `dtype`, by kind of run and probe: [largest, rms, along, rows].

    The choice of experts has none of its own: what may move it is the noise of its router's logits.
    """
    tables: dict[str, dict[str, Noise]] = {"lockstep": {}, "free": {}}
    for variant in variants:
        progress(f"noise in {dtype}: {variant.name}")
        candidate = Oracle(model, variant)
        schedule = golden.schedule_in(variant.chunk)
        lockstep = walk(candidate, golden, dtype, _handed_on(variant), schedule)
        gather(
            tables["lockstep"], lockstep, candidate.name, but="*.weights" if variant.fused else ""
        )
        gather(tables["free"], walk(candidate, golden, dtype, nowhere, schedule), candidate.name)
    return {
        run: {
            probe: [_up(n.largest), _up(n.rms), _up(n.along), n.rows] for probe, n in table.items()
        }
        for run, table in tables.items()
    }


def _handed_on(variant: Variant) -> HandOn:
    """Where a lockstep run of the variant hands the truth on: everywhere, or not within attention."""
    return (lambda probe: not probe.endswith(_INSIDE)) if variant.fused else everywhere


def gather(table: dict[str, Noise], result: Walk, name: str, but: str = "") -> None:
    """Adds the noise that a walk of the oracle showed; the oracle itself may have no problem.

    Left out is what matches `but`: weights of scores that are not the truth have errors of those.
    """
    for m in result.measurements:
        if is_expert_choice(m.probe) or fnmatch(m.probe, but):
            continue
        if m.errors is None:
            raise LockstepError(f"{name}: {m.probe} {m.problem}; the oracle's capture is broken")
        seen = m.errors.noise()
        table[m.probe] = table[m.probe].merge(seen) if m.probe in table else seen


def _up(x: float) -> float:
    """Rounded up to four digits, so that the stored noise covers what was measured."""
    if x == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(x)) - 3)
    return float(f"{math.ceil(x / unit) * unit:.3e}")
