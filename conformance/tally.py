"""Judges legal variants of one party, drawn at random, and counts the alarms."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from conformance.candidate import Candidate
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.reorder import Variant
from conformance.verdict import trial
from engine.errors import RequestError

Say = Callable[[str], None]
Make = Callable[[Golden, torch.dtype, Variant], Candidate]

MEASURED = ("float32", "bfloat16")


@dataclass(frozen=True)
class Tally:
    """Legal variants of one party in one dtype: how many were judged, and what was outside."""

    party: str
    dtype: str
    variants: int
    alarms: int  # variants in which anything was outside
    probes: int
    outside: tuple[str, ...]  # one line each

    def __str__(self) -> str:
        return (
            f"{self.party} in {self.dtype}: {self.alarms} of {self.variants:,} legal variants raised "
            f"an alarm; {len(self.outside)} of {self.probes:,} probes left their envelope"
        )


def tiny_goldens() -> list[Path]:
    """The committed goldens that bring their own checkpoint."""
    folders = sorted(p.parent for p in REPOSITORY_GOLDENS.glob("*/model.safetensors"))
    return [p for p in folders if (p / "trace.safetensors").is_file()]


def chosen_goldens(names: Sequence[str]) -> list[Path]:
    """The folders of the tiny goldens of those names, all of them if there are none."""
    known = {folder.name: folder for folder in tiny_goldens()}
    for name in names:
        if name not in known:
            raise RequestError(f"no tiny golden {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names or known]


def tally(
    party: str,
    make: Make,
    folders: Sequence[Path],
    dtype: str,
    count: int,
    seed: int,
    say: Say,
    pads: Sequence[int] = (0,),
) -> Tally:
    """Judges `count` variants that `make` turns into candidates; `pads` are the paddings it knows."""
    goldens = [Golden(folder) for folder in folders]
    draw = random.Random(f"{party} {dtype} {seed}")  # noqa: S311
    alarms = probes = 0
    outside: list[str] = []
    for n in range(count):
        golden = goldens[n % len(goldens)]
        variant = _draw(draw, golden.schedule[0], pads)
        candidate = make(golden, getattr(torch, dtype), variant)
        schedule = golden.schedule_in(variant.chunk)
        result = trial(candidate, golden, getattr(torch, dtype), schedule)
        probes += result.probes + len(result.own)
        found = [c.finding for c in result.culprits] + list(result.propagated)
        where = f"{golden.case}, {party} in {dtype}, {variant.name}"
        outside += [f"{finding}  {where}" for finding in found]
        outside += [
            f"BUG after {d.position}  {where}" for d in result.disagreements if not d.is_tie
        ]
        alarms += not result.conforms
        say(f"{party} in {dtype}: {n + 1} of {count} variants, {alarms} alarms")
    return Tally(party, dtype, count, alarms, probes, tuple(outside))


def _draw(draw: random.Random, prompt: int, pads: Sequence[int]) -> Variant:
    return Variant(
        attention=draw.choice(("eager", "sdpa")),
        threads=draw.choice((1, 2)),
        batch=draw.choice((1, 2, 3, 5)),
        # Down to single tokens, but no prompt in more than a few dozen steps.
        chunk=draw.choice((None, *range(max(1, prompt // 25), prompt))),
        pad=draw.choice(pads),
        split_k=draw.choice((1, 1, 2, 3, 4)),
        permute=draw.choice((None, draw.randrange(1000, 2**31))),
    )
