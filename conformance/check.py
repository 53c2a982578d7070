"""`lockstep check`: this engine against goldens, or against transformers run for the occasion."""

from __future__ import annotations

import importlib.util
import platform
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import torch

from conformance.candidate import Level
from conformance.engine_candidate import EngineCandidate
from conformance.generation import answer
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, remake, verify_hashes
from conformance.goldens import inventory, live_golden
from conformance.lockstep import chunks
from conformance.report import Report, TextTrial
from conformance.text import check_text
from conformance.verdict import trial
from engine.assets import KNOWN
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.generate import Engine
from engine.generate.engine import check_device
from engine.models import cached, resolve
from engine.weights import open_checkpoint

Say = Callable[[str], None]

#: Each backend with the size of its prefill chunks: together they cover whole and chunked prompts.
RUNS = (("eager", None), ("sdpa", 5))


def run_check(
    model: str | None,
    golden: Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    level: str = "L5",
    say: Say = lambda _: None,
    cases: str = "*",
) -> Report:
    """Judges the engine on MODEL, or on every golden where there is none.

    MODEL without `golden` is compared with transformers where that is installed, else with the
    committed golden of that name. `cases` is a pattern that chooses among the goldens. Raises
    LockstepError where there is nothing to check.
    """
    if level not in Level.__members__:
        raise RequestError(f"no level {level!r}; there are {', '.join(Level.__members__)}")
    check_device(device)
    report = Report(environment=environment(device, dtype))
    depth = Level[level]
    if model is not None and golden is None:
        _check_model(report, model, device, dtype, depth, say)
    elif model is not None and golden is not None:
        _check_on(report, golden, resolve(model), device, dtype, depth, say)
    else:
        _check_folder(report, golden or REPOSITORY_GOLDENS, cases, device, dtype, depth, say)
    if not report.trials and not report.texts:  # nobody's success, and no divergence either
        raise LockstepError(f"nothing was checked: {'; '.join(report.skipped) or 'no such case'}")
    return report


def _check_model(
    report: Report, model: str, device: str, dtype: str, level: Level, say: Say
) -> None:
    path = resolve(model, progress=True)
    open_checkpoint(path)  # what the engine refuses is refused before the reference is asked
    if importlib.util.find_spec("transformers"):
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            live_golden(model, path, Path(folder), dtype, say)
            _check_on(report, Path(folder), path, device, dtype, level, say)
        return
    committed = REPOSITORY_GOLDENS / model
    if not committed.is_dir():
        raise LockstepError(
            f"checking {model} needs transformers: pip install 'lockstep-llm[oracle]', "
            "or name a golden with --golden"
        )
    _check_on(report, committed, path, device, dtype, level, say)


def _check_folder(
    report: Report, root: Path, cases: str, device: str, dtype: str, level: Level, say: Say
) -> None:
    folders = [root] if (root / "manifest.json").is_file() else inventory(root)
    for folder in folders:
        if not fnmatch(folder.name, cases):
            continue
        manifest = read_manifest(folder)
        if manifest["kind"] == "text":
            say(f"{folder.name}: every stage of the tokenizer")
            verify_hashes(folder, manifest)
            report.texts.append(TextTrial(folder.name, "tokenizer", tuple(check_text(folder))))
            continue
        checkpoint = str(manifest["checkpoint"])
        if checkpoint in KNOWN and not cached(checkpoint):
            report.skipped.append(
                f"{folder.name}: its model is not here; get it with: lockstep fetch {checkpoint}"
            )
            continue
        path = resolve(checkpoint) if checkpoint in KNOWN else folder / checkpoint
        _check_on(report, folder, path, device, dtype, level, say)


def _check_on(
    report: Report, folder: Path, model: Path, device: str, dtype: str, level: Level, say: Say
) -> None:
    """One model golden: every backend, in lockstep and freely, then the engine's own loop."""
    golden = Golden(folder)
    known = KNOWN.get(str(golden.manifest["checkpoint"]))
    if known is not None and golden.manifest["checkpoint_sha256"] != known.files[0].sha256:
        raise ModelFileError(
            f"{folder.name} was made with another {known.name}; {remake(golden.case)}"
        )
    prompt, *single = golden.schedule
    engine = Engine.load(model, device=device, dtype=dtype)
    trials = []
    for backend, chunk in RUNS:
        candidate = EngineCandidate(engine, backend)
        if level > Level.L0:
            say(f"{golden.case}: {backend} in {dtype}")
            schedule = chunks(prompt, chunk or prompt, len(single))
            trials.append(trial(candidate, golden, engine.dtype, schedule, level))
    report.trials += trials
    if level == Level.L0 and "text" not in golden.manifest:
        report.skipped.append(f"{golden.case}: it has no text")
        return
    wrong = not all(t.conforms for t in trials)
    envelope = golden.envelope("free", engine.dtype)
    try:
        said = answer(candidate, golden, envelope, level, known_to_diverge=wrong)
    except ModelFileError as error:
        report.skipped.append(f"{golden.case}: its words, as {error}")
    else:
        report.texts.append(
            TextTrial(golden.case, "generation", said.findings, said.text, said.follows)
        )


def environment(device: str, dtype: str) -> dict[str, str]:
    """What a reader must know to repeat a check."""
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "dtype": dtype,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }
