"""Applies each mutant in a process of its own, runs the check, and says who was blamed.

A fault is planted as the module is imported: the files on disk are not touched, and line numbers stay.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from conformance.mutants.decisions import DECISIONS
from conformance.mutants.llama import LLAMA
from conformance.mutants.mutant import Mutant
from conformance.mutants.tokenizer import TOKENIZER
from engine.errors import LockstepError, RequestError

if TYPE_CHECKING:  # a fault is planted before the engine is imported, so it is not imported here
    from conformance.report import Report

Say = Callable[[str], None]

CATALOGUE: tuple[Mutant, ...] = (*LLAMA, *TOKENIZER, *DECISIONS)

#: The goldens that judge a family's faults, as a pattern of their names.
CASES = {
    "llama": "llama-*",
    "long": "long-*",
    "tokenizer": "text-*",
    "gguf": "smollm2-135m",
    "decisions": "decisions",
}

#: Checks that other projects stop at: how many of the faults would they have noticed?
WEAKER: Mapping[str, Callable[[Report], bool]] = {
    "greedy tokens": lambda report: (
        any(not d.is_tie for t in report.trials for d in t.disagreements)
        or any(found.stage == "generate" for t in report.texts for found in t.findings)
    ),
    "logits within 1 %": lambda report: any(t.logits_error > 0.01 for t in report.trials),
    "final logits in the envelope": lambda report: any(t.logits_outside for t in report.trials),
}

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """What the check said of one mutant. `error` is set where it could not be judged."""

    mutant: Mutant
    killed: bool
    blamed: tuple[str, ...]
    level: str
    noticed_by: tuple[str, ...]
    seconds: float
    error: str | None = None

    @property
    def blamed_right(self) -> bool:
        return self.killed and set(self.blamed) == set(self.mutant.expected.split())


@dataclass
class MutantReport:
    outcomes: list[Outcome] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 if every fault was caught and none imagined; 2 if one could not be judged."""
        if any(o.error for o in self.outcomes):
            return 2
        return 0 if all(o.killed for o in self.outcomes) and not self.false_alarms else 1

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep mutants --json`."""
        return {
            "mutants": [
                {
                    "id": o.mutant.id,
                    "family": o.mutant.family,
                    "fault": o.mutant.fault,
                    "source": o.mutant.source,
                    "expected": o.mutant.expected.split(),
                    "blamed": list(o.blamed),
                    "killed": o.killed,
                    "blamed_right": o.blamed_right,
                    "level": o.level,
                    "seconds": round(o.seconds, 2),
                    "error": o.error,
                }
                for o in self.outcomes
            ],
            "weaker_checks": {
                name: sum(name in o.noticed_by for o in self.outcomes) for name in WEAKER
            },
            "false_alarms": len(self.false_alarms),
        }


def run_mutants(family: str | None, say: Say) -> MutantReport:
    """Judges every mutant of `family` (all, if None), after the unmutated engine itself."""
    families = [f for f in CASES if family in (None, f)]
    if not families:
        raise RequestError(f"no mutants of the family {family!r}; there are {', '.join(CASES)}")
    mutants = [m for m in CATALOGUE if m.family in families]
    for mutant in mutants:
        planted(mutant)  # a fault that no longer fits the code is an error before anything runs
    report = MutantReport()
    # A fresh process for each: the fault must be there when the engine is first imported. Two at a
    # time, each on one thread; torch is loaded once, in the server that they fork from.
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch", "safetensors.torch", "regex", "jinja2", "rich.table"])
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        sound = [
            pool.submit(_judge_sound, f, dtype)
            for f in families
            for dtype in sorted({m.dtype for m in mutants if m.family == f})
        ]
        running = [pool.submit(_judge, mutant) for mutant in mutants]
        for done, future in enumerate(as_completed(running), 1):
            say(f"mutants: {done} of {len(running)}, last {future.result().mutant.id}")
        report.outcomes = [future.result() for future in running]
        report.false_alarms = [alarm for future in sound for alarm in future.result()]
    return report


def planted(mutant: Mutant) -> str:
    """The mutated source of the mutant's file; LockstepError if the fault no longer applies."""
    source = (_ROOT / mutant.file).read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise LockstepError(
            f"the mutant {mutant.id} no longer applies: its text stands "
            f"{source.count(mutant.old)} times in {mutant.file}; bring the catalogue up to date"
        )
    return source.replace(mutant.old, mutant.new)


class _Planting(importlib.abc.MetaPathFinder):
    """Finds one module, and gives it another source than its file's."""

    def __init__(self, mutant: Mutant) -> None:
        path = Path(mutant.file).with_suffix("")
        parts = path.parts[:-1] if path.name == "__init__" else path.parts
        self.module = ".".join(parts)
        self.path = str(_ROOT / mutant.file)
        self.code = compile(planted(mutant), self.path, "exec")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        loader = _Loader(fullname, self.path, self.code)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, code: CodeType) -> None:
        super().__init__(fullname, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


def _judge(mutant: Mutant) -> Outcome:
    start = time.monotonic()
    planting = _Planting(mutant)
    if planting.module in sys.modules:
        raise RuntimeError(f"{planting.module} was imported before its fault could be planted")
    sys.meta_path.insert(0, planting)
    try:
        report = _check(mutant.family, mutant.dtype)
    except Exception as error:  # a fault that stops the check is neither caught nor missed
        reason = f"{type(error).__name__}: {error}"
        return Outcome(mutant, False, (), "-", (), time.monotonic() - start, reason)
    document = report.to_json()
    blamed = tuple(dict.fromkeys(_operation(c["probe"]) for c in document["culprits"]))
    noticed = tuple(name for name, notices in WEAKER.items() if notices(report))
    killed = report.exit_status == 1
    level = _level(blamed, noticed) if killed else "-"
    return Outcome(mutant, killed, blamed, level, noticed, time.monotonic() - start)


def _level(blamed: Sequence[str], noticed: Sequence[str]) -> str:
    """The lowest level at which the fault shows."""
    if "logprobs" in blamed:
        return "L2"
    in_ids = ("tokenizer.", "sampling.", "stopping.")
    if "greedy tokens" in noticed or any(name.startswith(in_ids) for name in blamed):
        return "L1"
    if "final logits in the envelope" in noticed:
        return "L3"
    return "L5" if any(name.startswith("cache.") for name in blamed) else "L4"


def _judge_sound(family: str, dtype: str) -> list[str]:
    """What the check blames in the engine as it is."""
    report = _check(family, dtype)
    alarms = [c["probe"] for c in report.to_json()["culprits"]]
    return alarms or ([] if report.exit_status == 0 else [f"{family} in {dtype}: no verdict"])


def _check(family: str, dtype: str) -> Report:
    import torch

    from conformance.check import run_check

    torch.set_num_threads(1)
    report = run_check(dtype=dtype, cases=CASES[family])
    if report.skipped:  # a fault must not survive because its golden was left out
        raise LockstepError(report.skipped[0])
    return report


def _operation(probe: str) -> str:
    """A probe's name without the layer's number: `attn.q_rope`, `cache.k`, `logits`."""
    return re.sub(r"(^|cache\.)layers\.\d+\.", r"\1", probe)


def print_mutants(report: MutantReport, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("mutant", "killed", "at", "blamed", "expected", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for o in report.outcomes:
        killed = "[red]error[/]" if o.error else "yes" if o.killed else "[red]NO[/]"
        right = "" if o.blamed_right else f"[red]{o.mutant.expected}[/]"
        blamed = o.error or " ".join(o.blamed)
        table.add_row(o.mutant.id, killed, o.level, blamed, right, f"{o.seconds:.1f}")
    console.print(table)
    n = len(report.outcomes)
    n_killed = sum(o.killed for o in report.outcomes)
    n_right = sum(o.blamed_right for o in report.outcomes)
    console.print(f"{n_killed} of {n} killed, {n_right} blamed on exactly the expected operations")
    for name, count in report.to_json()["weaker_checks"].items():
        console.print(f"{name}: would have noticed {count} of {n}", style="dim")
    console.print(f"the unmutated engine: {len(report.false_alarms)} operations blamed")
