"""What a run found, as an object and as JSON; docs/bench.md says what each field means.

Fields may be added to the document; a field that changes its meaning or goes away takes a new `SCHEMA`.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from conformance.bench.compare import Fall
from conformance.bench.forms import Form
from conformance.bench.growth import Growth
from conformance.bench.limits import Limits, best_of
from conformance.bench.rounds import Played, Ratio
from conformance.bench.work import Work
from engine.weights import Checkpoint

SCHEMA = 1  # version of the JSON document


@dataclass
class Bench:
    """A whole run; `differing` says by scenario and form whether ids are those of the first form."""

    environment: dict[str, str]
    model: dict[str, Any]
    dtype: str
    forms: Sequence[Form]
    rounds: int
    played: Played
    works: dict[str, Work]
    ratios: list[Ratio]
    differing: dict[str, dict[str, str]]
    skipped: list[str] = field(default_factory=list)
    stages: dict[str, dict[str, dict[str, Any]]] | None = None
    growth: Growth | None = None
    falls: list[Fall] | None = None  # None where nothing was compared

    @property
    def exit_status(self) -> int:
        """0, or 1 where a ratio fell."""
        return 1 if self.falls else 0

    @property
    def limits(self) -> Limits | None:
        """The best of what the machine did in all rounds."""
        return best_of(self.played.limits) if self.played.limits else None

    def ratio(self, scenario: str, form: str, against: str) -> Ratio | None:
        wanted = (scenario, form, against)
        return next((r for r in self.ratios if (r.scenario, r.form, r.against) == wanted), None)

    def seconds(self, scenario: str, form: str) -> float | None:
        """The median of the rounds; None where the form was not asked."""
        found = self.played.seconds.get(scenario, {}).get(form)
        return median(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep bench --json`: bytes, seconds, and how many times as fast."""
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "model": self.model,
            "dtype": self.dtype,
            "rounds": self.rounds,
            "limits": self.limits and asdict(self.limits),
            "forms": [
                {
                    "name": form.name,
                    "dtype": form.dtype,
                    "weights": self.works[form.name].weights,
                    "start": self.played.starts.get(form.name),
                    "memory": self.played.memory.get(form.name),
                }
                for form in self.forms
            ],
            "scenarios": [self._scenario(s.name, s.tokens) for s in self.played.scenarios],
            "ratios": [
                {"scenario": r.scenario, "form": r.form, "against": r.against, **asdict(r.value)}
                for r in self.ratios
            ],
            "skipped": self.skipped,
            "stages": self.stages,
            "growth": self.growth and self.growth.to_json(),
            "fell": self.falls and [asdict(fall) for fall in self.falls],
        }

    def _scenario(self, name: str, tokens: int) -> dict[str, Any]:
        return {
            "name": name,
            "tokens": tokens,
            "forms": {
                form: {
                    "seconds": seconds,
                    "median": median(seconds),
                    "tokens_per_second": tokens / median(seconds) if tokens else None,
                    "ids": self.differing.get(name, {}).get(form),
                }
                for form, seconds in self.played.seconds.get(name, {}).items()
            },
        }


def environment(device: str, threads: int | None) -> dict[str, str]:
    """What a reader must know to repeat a run."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
        "processor": _processor(),
        "threads": str(threads or torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in names if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def model_of(checkpoint: Checkpoint, name: str, work: Work) -> dict[str, Any]:
    """What tells one model from another: its shape, as speed depends on nothing else."""
    shape = hashlib.sha256(repr(checkpoint.spec).encode()).hexdigest()
    return {"name": name, "shape": shape[:16], "parameters": work.parameters}
