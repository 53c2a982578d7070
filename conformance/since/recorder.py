"""Runs the engine that is first on the path over goldens, and writes down all that it shows.

    python -P -m conformance.since.recorder OUT DEVICE DTYPE '[["GOLDEN", "MODEL" or null], ...]'

OUT receives `record.json` and a safetensors file for each run. A run is one candidate by one schedule
on one golden, freely or in lockstep: there each operation starts from the golden's inputs, so that one
that was changed differs by itself, and what follows it does not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import engine
from conformance.candidate import Candidate, said
from conformance.engine_candidate import candidates
from conformance.golden import Golden
from conformance.text import answers, attempt
from engine.errors import LockstepError

RUNS = ("lockstep", "free")
SCHEDULES = {"whole": None, "chunks of 5": 5}


@dataclass(frozen=True)
class Run:
    """One run's tensors, in `file` by "step/probe"; `sizes` are the tokens of each step.

    `places` are the lines of the engine's code, `stopped` is the error that ended the run early.
    """

    case: str
    candidate: str
    schedule: str
    run: str
    sizes: list[int]
    file: str
    places: dict[str, str]
    stopped: str | None


@dataclass(frozen=True)
class Answers:
    """What a tokenizer or a candidate's own loop answered: stage, input and answer of each question."""

    case: str
    what: str
    answers: list[tuple[str, str, Any]]


@dataclass
class Record:
    """All that one version of the engine showed."""

    runs: list[Run] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Record:
        found = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        return cls([Run(**r) for r in found["runs"]], [Answers(**a) for a in found["answers"]])


def record(out: Path, device: str, dtype: str, inputs: list[tuple[str, str | None]]) -> None:
    """Runs every input, a golden with its model or a text golden alone, and writes the record."""
    torch.set_num_threads(1)  # the order of sums must be the engine's choice, not the machine's
    made = Record()
    for folder, model in inputs:
        _say(Path(folder).name)
        if model is None:
            made.answers.append(Answers(Path(folder).name, "tokenizer", answers(Path(folder))))
            continue
        golden = Golden(Path(folder))
        for candidate in candidates(Path(model), device, dtype):
            for schedule in SCHEDULES:
                for run in RUNS:
                    file = f"{len(made.runs):04}.safetensors"
                    made.runs.append(_run(candidate, golden, dtype, schedule, run, out / file))
            made.answers.append(Answers(golden.case, candidate.name, _own_loop(candidate, golden)))
    (out / "record.json").write_text(json.dumps(asdict(made)), encoding="utf-8")


def _run(
    candidate: Candidate, golden: Golden, dtype: str, schedule: str, run: str, file: Path
) -> Run:
    shown: dict[str, Tensor] = {}
    stopped = None
    start = 0
    sizes = golden.schedule_in(SCHEDULES[schedule])
    candidate.begin(len(golden.ids))
    for step, size in enumerate(sizes):
        tap = partial(_keep, shown, golden, run, step, start, start + size)
        try:
            candidate.step(golden.ids[start : start + size], tap)
        except LockstepError:
            raise
        except Exception as error:  # what an edit broke is a difference, not a failure of the check
            stopped = said(error)
            break
        start += size
    save_file(shown, file)
    probes = {key.split("/", 1)[1] for key in shown}
    return Run(
        case=golden.case,
        candidate=candidate.name,
        schedule=schedule,
        run=run,
        sizes=sizes,
        file=file.name,
        places={probe: at for probe in probes if (at := _place(candidate, probe))},
        stopped=stopped,
    )


def _keep(
    shown: dict[str, Tensor],
    golden: Golden,
    run: str,
    step: int,
    start: int,
    stop: int,
    probe: str,
    value: Tensor,
) -> Tensor:
    """The tap of one step: keeps what the golden watches, and in lockstep hands its truth on."""
    if golden.watches(probe):
        kept = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        shown[f"{step}/{probe}"] = kept
    if run == "free" or probe not in golden:
        return value
    truth = golden.truth(probe, start, stop).to(value.device, value.dtype)
    return truth.expand_as(value).clone() if truth.shape == value.shape[1:] else value


def _place(candidate: Candidate, probe: str) -> str | None:
    """The line of the engine's code, relative to the folder that holds the engine."""
    at = candidate.locate(probe)
    home = Path(str(engine.__file__)).parents[1]
    return f"{Path(at.file).relative_to(home).as_posix()}:{at.line}" if at else None


def _own_loop(candidate: Candidate, golden: Golden) -> list[tuple[str, str, Any]]:
    """The candidate's greedy tokens after the golden's prompt, and its words where it has any."""
    prompt = golden.ids[: golden.schedule[0]].tolist()
    n = len(golden.ids) - len(prompt)
    asked: list[tuple[str, str, Any]] = [
        ("generate", f"{len(prompt)} ids", attempt(lambda: candidate.greedy(prompt, n)))
    ]
    if "text" in golden.manifest:
        text = str(golden.manifest["text"])
        asked.append(("tokenizer.encode", text, attempt(lambda: candidate.encode(text))))
        asked.append(("generate", text, attempt(lambda: candidate.text(text, n))))
    return asked


def _say(message: str) -> None:
    sys.stderr.write(f"progress: {message}\n")


if __name__ == "__main__":
    out, device, dtype, inputs = sys.argv[1:]
    try:
        record(Path(out), device, dtype, json.loads(inputs))
    except LockstepError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)
