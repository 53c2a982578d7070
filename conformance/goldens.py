"""Making, verifying and listing goldens. The oracle runs in a process of its own: goldens are the border."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from conformance import decision_cases
from conformance.cases import CASES, REAL_CASES
from conformance.envelope import K, half_step, row_errors
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, remake, verify_hashes
from conformance.process import Say, run_module
from conformance.text_cases import TEXT_CASES
from engine.assets import KNOWN
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.models import cached, resolve

NAMES: tuple[str, ...] = (
    *(case.name for case in CASES),
    *(case.name for case in REAL_CASES),
    *(case.name for case in TEXT_CASES),
    decision_cases.NAME,
)


def capture(names: Sequence[str], out: Path | None, say: Say) -> list[Path]:
    """Makes the goldens called `names` (all, if none) in `out`, each replaced whole or not at all."""
    root = out or REPOSITORY_GOLDENS
    root.mkdir(parents=True, exist_ok=True)
    made = []
    for name in _chosen(names):
        with tempfile.TemporaryDirectory(prefix=".making-", dir=root) as folder:
            draft = Path(folder) / name
            run_oracle(["case", name, str(draft.resolve()), *_model_of(name)], f"{name}: ", say)
            if (root / name).exists():
                shutil.rmtree(root / name)
            draft.rename(root / name)
        made.append(root / name)
    return made


def checkpoint_of(folder: Path, manifest: Mapping[str, Any]) -> Path | None:
    """The model that a golden was made of; None where it would have to be fetched first."""
    name = str(manifest["checkpoint"])
    return cached(name) if name in KNOWN else folder / name


def missing_checkpoint(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Why a golden is skipped whose model is not here."""
    return f"{folder.name}: its model is not here; get it with: lockstep fetch {manifest['checkpoint']}"


def inventory(root: Path) -> list[Path]:
    """The golden folders below `root`; for the repository's, none may be missing or unused."""
    if not root.is_dir():
        raise ModelFileError(f"{root} is no folder of goldens")
    found = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise ModelFileError(f"{root} holds no goldens; make them with: lockstep golden capture")
    if root == REPOSITORY_GOLDENS:
        for name in NAMES:
            if root / name not in found:
                raise ModelFileError(f"the golden {name} is missing; {remake(name)}")
        for folder in found:
            if folder.name not in NAMES:
                raise ModelFileError(f"the golden {folder} belongs to no case; remove it")
    return found


def list_cases() -> list[str]:
    """A line for each case: its name, kind, and whether its golden is there."""
    lines = []
    for name in NAMES:
        folder = REPOSITORY_GOLDENS / name
        if folder.is_dir():
            manifest = read_manifest(folder)
            size = sum(p.stat().st_size for p in folder.iterdir()) / 1024
            lines.append(f"{name:22} {manifest['kind']:6} {size:7.0f} KiB  {manifest['command']}")
        else:
            lines.append(f"{name:22} missing; {remake(name)}")
    return lines


@dataclass(frozen=True)
class Verification:
    """How a golden made again compares with the committed one."""

    case: str
    outcome: str
    agrees: bool

    @property
    def exit_status(self) -> int:
        return 0 if self.agrees else 1

    def __str__(self) -> str:
        return f"{self.case:22} {self.outcome}"


def verify(names: Sequence[str], say: Say) -> list[Verification]:
    """Makes goldens again in a temporary folder and compares: bit-identical, or within the noise."""
    results = []
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder:
        for name in _chosen(names):
            old = REPOSITORY_GOLDENS / name
            verify_hashes(old, read_manifest(old))
            (new,) = capture([name], Path(folder), say)
            results.append(_compare(old, new))
    return results


def _compare(old: Path, new: Path) -> Verification:
    before, after = read_manifest(old), read_manifest(new)
    changed = sorted(
        name
        for name in before["files"] | after["files"]
        if before["files"].get(name) != after["files"].get(name)
    )
    made, running = (
        ", ".join(f"{k} {v}" for k, v in m["versions"].items()) for m in (before, after)
    )
    stale = "" if made == running else f" (made with {made}; running {running})"
    if not changed:
        return Verification(old.name, f"bit-identical{stale}", True)
    if set(changed) <= {"trace.safetensors", "noise.json"} and before["ids"] == after["ids"]:
        problem = _beyond_noise(Golden(old), Golden(new))
        if problem is None:
            outcome = f"within the stored noise, not bit-identical: {', '.join(changed)}{stale}"
            return Verification(old.name, outcome, True)
        return Verification(old.name, f"DIFFERS: {problem}{stale}", False)
    return Verification(old.name, f"DIFFERS: {', '.join(changed)}{stale}", False)


def _beyond_noise(old: Golden, new: Golden) -> str | None:
    """The first probe whose truth or noise left the old golden's envelope, in words."""
    reference = old.envelope("free", torch.float32)
    truths = load_file(new.folder / "trace.safetensors")
    if list(old.manifest["probes"]) != list(new.manifest["probes"]):
        return "the probes are others"
    for probe, truth in old.trace.items():
        if truths[probe].shape != truth.shape:
            return f"{probe} has another shape"
        off = float(row_errors(truths[probe], truth).largest.max())
        if off > reference.allowance(probe):
            return f"the truth of {probe} moved by {off:.1e} of its scale"
    tables = [json.loads((g.folder / "noise.json").read_text()) for g in (old, new)]
    for dtype, runs in tables[0].items():
        floor = half_step(getattr(torch, dtype))
        for run, probes in runs.items():
            for probe, (largest, _, _) in probes.items():
                again = tables[1][dtype][run][probe][0]
                if again > K[run] * largest + floor:
                    return f"the noise of {probe} in {dtype} grew from {largest} to {again}"
    return None


def _chosen(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in NAMES:
            raise RequestError(f"no case {name!r}; there are {', '.join(NAMES)}")
    return names or NAMES


def _model_of(name: str) -> list[str]:
    """Where the checkpoint of a real case lies; it is fetched if it has to be."""
    return [str(resolve(case.model)) for case in REAL_CASES if case.name == name]


def run_oracle(arguments: list[str], prefix: str, say: Say) -> None:
    """Runs `python -m conformance.oracle`, passes its progress on, and its one-line error."""
    if importlib.util.find_spec("transformers") is None:
        raise LockstepError("this needs transformers: pip install 'lockstep-llm[oracle]'")
    run_module("conformance.oracle", arguments, failed="the oracle failed", prefix=prefix, say=say)
