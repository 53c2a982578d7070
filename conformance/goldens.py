"""Making, verifying and listing goldens. The oracle runs in a process of its own: goldens are the border."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from conformance import decision_cases
from conformance.cases import CASES, REAL_CASES
from conformance.cases.answers import ANSWERS_CASES
from conformance.cases.beams import BEAMS_CASES
from conformance.golden import REPOSITORY_GOLDENS, read_manifest, remake, verify_hashes
from conformance.process import Say, run_module
from conformance.text_cases import TEXT_CASES
from conformance.tokens import TOKENS_CASES
from conformance.verification import VerifyReport, compare
from engine.assets import KNOWN
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.models import cached, resolve

NAMES: tuple[str, ...] = (
    *(case.name for case in CASES),
    *(case.name for case in REAL_CASES),
    *(case.name for case in TEXT_CASES),
    *(case.name for case in TOKENS_CASES),
    *(case.name for case in ANSWERS_CASES),
    *(case.name for case in BEAMS_CASES),
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
    if root.resolve() == REPOSITORY_GOLDENS:
        for name in NAMES:
            if root / name not in found:
                raise ModelFileError(f"the golden {name} is missing; {remake(name)}")
        for folder in found:
            if folder.name not in NAMES:
                raise ModelFileError(f"the golden {folder} belongs to no case; remove it")
    return found


def listing() -> Table:
    """A line for each case: what its golden is of, how large it is, and what made it."""
    table = Table(box=None, pad_edge=False)
    for name in ("golden", "kind", "tokens", "probes", "KiB", "made with"):
        number = name in ("tokens", "probes", "KiB")
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for name in NAMES:
        folder = REPOSITORY_GOLDENS / name
        try:
            manifest = read_manifest(folder)
        except ModelFileError:
            table.add_row(name, "none", "", "", "", remake(name))
            continue
        tokens, probes = (str(len(manifest.get(key, ())) or "") for key in ("ids", "probes"))
        size = sum(p.stat().st_size for p in folder.iterdir()) / 1024
        made = f"transformers {manifest['versions']['transformers']}"
        table.add_row(name, manifest["kind"], tokens, probes, f"{size:,.0f}", made)
    return table


def verify(names: Sequence[str], say: Say) -> VerifyReport:
    """Makes goldens again in a temporary folder and compares; the committed ones stay as they are."""
    results = []
    with tempfile.TemporaryDirectory(prefix="lockstep-verify-") as folder:
        for name in _chosen(names):
            old = REPOSITORY_GOLDENS / name
            verify_hashes(old, read_manifest(old))
            (new,) = capture([name], Path(folder), say)
            results.append(compare(old, new))
    return VerifyReport(tuple(results))


def _chosen(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in NAMES:
            raise RequestError(f"no case {name!r}; there are {', '.join(NAMES)}")
    return names or NAMES


def _model_of(name: str) -> list[str]:
    """Where the model or tokenizer of a real case lies; it is fetched if it has to be."""
    assets = [case.model for case in REAL_CASES if case.name == name]
    assets += [case.model for case in ANSWERS_CASES if case.name == name]
    assets += [
        case.model for case in BEAMS_CASES if case.name == name and isinstance(case.model, str)
    ]
    assets += [case.asset for case in TOKENS_CASES if case.name == name]
    return [str(resolve(asset)) for asset in assets]


def run_oracle(arguments: list[str], prefix: str, say: Say) -> None:
    """Runs `python -m conformance.oracle`, passes its progress on, and its one-line error."""
    if importlib.util.find_spec("transformers") is None:
        raise LockstepError("this needs transformers: pip install 'lockstep-llm[oracle]'")
    run_module("conformance.oracle", arguments, failed="the oracle failed", prefix=prefix, say=say)
