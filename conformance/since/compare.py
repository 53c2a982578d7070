"""`lockstep check --since REV`: two versions of the engine, compared bit by bit and by envelope.

Each version runs in a process of its own, over the same goldens and by the same conformance code. A
refactoring is shown to change no bit, an optimisation to stay within the noise of what it changed.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.candidate import operation
from conformance.check import environment
from conformance.difference import changed_bits, row_differences
from conformance.golden import REPOSITORY_GOLDENS, Golden, is_golden, read_manifest, verify_hashes
from conformance.goldens import checkpoint_of, inventory, missing_checkpoint
from conformance.process import ROOT, Say, run_module
from conformance.since.recorder import Answers, Record, Run
from conformance.since.revision import check_out
from conformance.text import TextFinding
from engine.device import DTYPES, check_device, check_dtype
from engine.errors import LockstepError, RequestError


@dataclass(frozen=True)
class Version:
    """A folder that holds `engine/`, and what a report calls it."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Change:
    """An operation that differs, in one run, at any layer or step.

    `probe` is the first that differs and `file`:`line` its place in the engine as it is now; `rows` is how
    many differ. `difference` is the largest relative to its row's scale, `share` what part of its
    probe's allowance that is. A `problem` is a difference that no number describes.
    """

    operation: str
    probe: str
    rows: int
    difference: float
    share: float
    place: str | None
    problem: str | None = None

    @property
    def within(self) -> bool:
        return self.problem is None and self.share <= 1


@dataclass(frozen=True)
class Comparison:
    """A candidate by one schedule on one golden, before and now.

    `changes` come from the lockstep run, where an operation differs only by itself; `downstream`
    from the free run, where it differs by all that came before it too.
    """

    case: str
    candidate: str
    schedule: str
    probes: int
    changes: tuple[Change, ...]
    downstream: tuple[Change, ...]


@dataclass(frozen=True)
class AnswersCompared:
    """Questions to a tokenizer or to a candidate's own loop; `changed` has the old answer as expected."""

    case: str
    what: str
    count: int
    changed: tuple[TextFinding, ...]


@dataclass(frozen=True)
class EngineDiff:
    """How one version of the engine differs from an earlier one, both by name."""

    before: str
    after: str
    comparisons: tuple[Comparison, ...]
    answers: tuple[AnswersCompared, ...]
    skipped: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def verdict(self) -> str:
        """ "bit-identical", "within noise" or "differs"."""
        changes = [c for x in self.comparisons for c in (*x.changes, *x.downstream)]
        if not all(c.within for c in changes) or any(a.changed for a in self.answers):
            return "differs"
        return "within noise" if changes else "bit-identical"

    @property
    def exit_status(self) -> int:
        return 1 if self.verdict == "differs" else 0

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep check --since REV --json`."""
        return {"verdict": self.verdict, **asdict(self)}


def compare_with(
    revision: str,
    targets: Sequence[str] = (),
    *,
    device: str = "cpu",
    dtype: str = "float32",
    say: Say = lambda _: None,
) -> EngineDiff:
    """Compares the engine at a git revision with the working tree's, on TARGETS or on every golden.

    A target is a golden's folder, a folder of goldens or the name of a committed golden. Raises
    LockstepError where there is no such revision, or where today's conformance code cannot run it.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-since-") as folder:
        commit = check_out(revision, Path(folder))
        before = Version(f"{revision} ({commit[:10]})", Path(folder))
        after = Version("the working tree", ROOT)
        return compare(before, after, targets, device=device, dtype=dtype, say=say)


def compare(
    before: Version,
    after: Version,
    targets: Sequence[str] = (),
    *,
    device: str = "cpu",
    dtype: str = "float32",
    say: Say = lambda _: None,
) -> EngineDiff:
    """Compares two versions of the engine on TARGETS or on every golden; see `compare_with`."""
    check_dtype(dtype)
    check_device(device)
    inputs, skipped = _inputs(targets)
    if not inputs:
        raise LockstepError(f"nothing was compared: {'; '.join(skipped)}")
    asked = [device, dtype, json.dumps([[str(f), m and str(m)] for f, m in inputs.items()])]
    with tempfile.TemporaryDirectory(prefix="lockstep-record-") as scratch:

        def record(version: Version, out: Path) -> Record:
            out.mkdir()
            run_module(
                "conformance.since.recorder",
                [str(out), *asked],
                failed=f"today's conformance code cannot run the engine of {version.name}",
                prefix=f"{version.name}: ",
                say=say,
                path=(version.folder, ROOT),
            )
            return Record.read(out)

        outs = Path(scratch, "before"), Path(scratch, "after")
        with ThreadPoolExecutor(2) as pool:  # each waits for a process of one thread
            old, new = pool.map(record, (before, after), outs)
        for run in old.runs:
            if run.stopped:
                raise LockstepError(
                    f"the engine of {before.name} cannot run {run.case}: {run.stopped}; "
                    "compare with a later revision"
                )
        say("comparing")
        goldens = {f.name: Golden(f) for f, model in inputs.items() if model is not None}
        comparisons = tuple(_compare_runs(old, new, outs, goldens, DTYPES[dtype]))
    return EngineDiff(
        before=before.name,
        after=after.name,
        comparisons=comparisons,
        answers=tuple(
            _compare_answers(a, b) for a, b in zip(old.answers, new.answers, strict=True)
        ),
        skipped=tuple(skipped),
        environment=environment(device, dtype) | {"threads": "1"},
    )


def _inputs(targets: Sequence[str]) -> tuple[dict[Path, Path | None], list[str]]:
    """The goldens of TARGETS, each with its model (a text golden has none), and what is skipped."""
    folders: list[Path] = []
    for target in targets or [str(REPOSITORY_GOLDENS)]:
        found = next((p for p in (Path(target), REPOSITORY_GOLDENS / target) if p.is_dir()), None)
        if found is None:
            raise RequestError(f"--since compares on goldens, and {target!r} is no folder of any")
        folders += [found] if is_golden(found) else inventory(found)
    inputs: dict[Path, Path | None] = {}
    skipped = []
    for folder in folders:
        manifest = read_manifest(folder)
        verify_hashes(folder, manifest)
        if manifest["kind"] == "text":
            inputs[folder.resolve()] = None
        elif manifest["kind"] != "model":
            skipped.append(f"{folder.name}: it holds no tensors of a decoder; check it by itself")
        elif (model := checkpoint_of(folder, manifest)) is not None:
            inputs[folder.resolve()] = model.resolve()
        else:
            skipped.append(missing_checkpoint(folder, manifest))
    return inputs, skipped


def _compare_runs(
    old: Record,
    new: Record,
    outs: tuple[Path, Path],
    goldens: Mapping[str, Golden],
    dtype: torch.dtype,
) -> Iterator[Comparison]:
    """The runs of both versions in pairs: the same recorder made them in the same order."""

    def where(pair: tuple[Run, Run]) -> tuple[str, str, str]:
        return pair[0].case, pair[0].candidate, pair[0].schedule

    for (case, candidate, schedule), pairs in groupby(zip(old.runs, new.runs, strict=True), where):
        changes: dict[str, tuple[Change, ...]] = {}
        for before, after in pairs:
            old_tensors, new_tensors = (
                load_file(outs[0] / before.file),
                load_file(outs[1] / after.file),
            )
            found = _changes(old_tensors, new_tensors, goldens[case], dtype, after)
            changes[before.run] = tuple(_by_operation(found))
        probes = {key.split("/", 1)[1] for key in old_tensors}
        yield Comparison(
            case, candidate, schedule, len(probes), changes["lockstep"], changes["free"]
        )


def _changes(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    golden: Golden,
    dtype: torch.dtype,
    run: Run,
) -> Iterator[Change]:
    """What differs at each step, in the order of execution."""
    envelope = golden.envelope(run.run, dtype)

    def order(key: str) -> tuple[int, int]:
        step, probe = key.split("/", 1)
        return int(step), golden.order(probe)

    for key in sorted(before.keys() | after.keys(), key=order):
        probe = key.split("/", 1)[1]
        change = Change(operation(probe), probe, 0, 0.0, 0.0, run.places.get(probe))
        old, new = before.get(key), after.get(key)
        if new is None:
            stopped = f"is not reached any more: {run.stopped}"
            yield replace(change, problem=stopped if run.stopped else "has vanished")
            if run.stopped:
                return
        elif old is None:
            yield replace(change, problem="is new")
        elif old.shape != new.shape:
            shapes = f"has the shape {tuple(new.shape)}, before {tuple(old.shape)}"
            yield replace(change, problem=shapes)
        elif old.dtype != new.dtype:
            yield replace(change, problem=f"is {new.dtype}, before {old.dtype}")
        elif rows := int(changed_bits(old, new).any(-1).sum()):
            start = sum(run.sizes[: order(key)[0]])
            stop = start + run.sizes[order(key)[0]]
            scale = golden.scale(probe, start, stop) if probe in golden else None
            fits = scale is not None and scale.shape == old.shape[1:-1]
            largest = float(row_differences(old, new, scale if fits else None).max())
            allowed = envelope.allowance(probe) if probe in envelope.noise else 0.0
            share = largest / allowed if allowed else math.inf
            yield replace(change, rows=rows, difference=largest, share=share)


def _by_operation(changes: Iterator[Change]) -> Iterator[Change]:
    """One change for each operation: where it differs first, in all its rows, at its worst."""
    groups: dict[str, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.operation, []).append(change)
    for group in groups.values():
        worst = max(group, key=lambda c: c.share)
        yield replace(
            group[0],
            rows=sum(c.rows for c in group),
            difference=worst.difference,
            share=worst.share,
            problem=next((c.problem for c in group if c.problem), None),
        )


def _compare_answers(before: Answers, after: Answers) -> AnswersCompared:
    changed = [
        TextFinding(stage, shown, old, new)
        for (stage, shown, old), (_, _, new) in zip(before.answers, after.answers, strict=True)
        if old != new
    ]
    return AnswersCompared(before.case, before.what, len(before.answers), tuple(changed))
