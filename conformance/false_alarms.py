"""How often the suite cries wolf: legal variants of the reference and of the engine, judged as in a check.

The variants are drawn at random and are none of those that the noise was measured on: other orders
of summation, chunks, batches, kernels, thread counts.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conformance.candidate import Candidate
from conformance.golden import Golden
from conformance.goldens import run_oracle
from conformance.reorder import Variant
from conformance.tally import MEASURED, Make, Say, Tally, chosen_goldens, tally
from conformance.varied_engine import VariedEngine
from engine import Engine
from engine.backends import supports
from engine.errors import RequestError

#: What is promised: at most one legal variant in so many raises an alarm.
PROMISE = 1000


@dataclass(frozen=True)
class FalseAlarms:
    """The tallies of both parties in each dtype, and the seed that their variants were drawn with."""

    seed: int
    tallies: tuple[Tally, ...]

    @property
    def exit_status(self) -> int:
        """1 where more than one variant in PROMISE raised an alarm."""
        variants = sum(t.variants for t in self.tallies)
        return int(sum(t.alarms for t in self.tallies) * PROMISE > variants)

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "tallies": [asdict(t) for t in self.tallies]}

    def __str__(self) -> str:
        lines = [str(t) for t in self.tallies]
        lines += [f"outside  {line}" for t in self.tallies for line in t.outside]
        return "\n".join([*lines, f"seed {self.seed}"])


def measure(names: Sequence[str], count: int, seed: int, say: Say) -> FalseAlarms:
    """Judges `count` variants of the reference and as many of the engine, in each dtype.

    The variants go round the goldens called `names`, all tiny ones if there are none. The reference
    runs in a process of its own.
    """
    if count < 1:
        raise RequestError(f"--false-alarms takes a number of variants from 1 up, not {count}")
    folders = chosen_goldens(names)
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        out = Path(folder) / "tallies.json"
        run_oracle(
            ["alarms", str(count), str(seed), str(out), *map(str, folders)], "transformers: ", say
        )
        theirs = [
            Tally(**(t | {"outside": tuple(t["outside"])})) for t in json.loads(out.read_text())
        ]
    ours = [
        tally("the engine", _engine_variant(), folders, dtype, count, seed, say)
        for dtype in MEASURED
    ]
    return FalseAlarms(seed, tuple(theirs + ours))


def _engine_variant() -> Make:
    engines: dict[tuple[str, torch.dtype], Engine] = {}

    def make(golden: Golden, dtype: torch.dtype, variant: Variant) -> Candidate:
        key = golden.case, dtype
        if key not in engines:
            name = str(dtype).removeprefix("torch.")
            engines[key] = Engine.load(golden.folder, dtype=name)
        known = supports(variant.attention, engines[key].spec)
        attention = variant.attention if known else "eager"
        return VariedEngine(engines[key], replace(variant, pad=0, attention=attention))

    return make
