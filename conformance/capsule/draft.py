"""The files of a capsule that are the same for every kind: what it is about, in JSON, in words and as a test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.candidate import Level
from conformance.capsule.replay import FORMAT

LIMIT = 1_000_000  # bytes


@dataclass(frozen=True)
class Run:
    """How a check makes its candidates, and how deep it looks."""

    maker: str  # the factory's name, module:function
    device: str
    dtype: str
    level: Level


@dataclass(frozen=True)
class Left:
    """How much of the failing run is left: (before, after) of each; None where there was nothing to cut."""

    tokens: tuple[int, int] | None = None
    steps: tuple[int, int] | None = None
    layers: tuple[int, int] | None = None
    heads: tuple[int, int] | None = None
    texts: tuple[int, int] | None = None

    def __str__(self) -> str:
        said = [
            f"{what} from {before} to {after}"
            for what, pair in vars(self).items()
            if pair is not None
            for before, after in [pair]
        ]
        return ", ".join(said) or "nothing could be cut"


def write_about(
    draft: Path, run: Run, *, kind: str, case: str, name: str, failure: str, left: Left, **more: Any
) -> None:
    """capsule.json; `name` is the candidate's, `failure` the finding in one line."""
    about: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "case": case,
        "candidate": run.maker,
        "name": name,
        "device": run.device,
        "dtype": run.dtype,
        "level": run.level.name,
        "schedule": [],
        "failure": failure,
        "cut": vars(left),
        **more,
    }
    path = draft / "capsule.json"
    path.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_words(draft: Path, left: Left, notes: list[str]) -> None:
    """README.txt and test_capsule.py, from capsule.json."""
    about = json.loads((draft / "capsule.json").read_text(encoding="utf-8"))
    place = "\n".join(["", *notes]) if notes else ""
    readme = _README.format(**about, left=left, notes=place)
    (draft / "README.txt").write_text(readme, encoding="utf-8")
    (draft / "test_capsule.py").write_text(_TEST.format(**about), encoding="utf-8")


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


_README = """A failure of {name} on the golden {case}, in {dtype} on {device}.

{failure}

Cut, and run again after each cut: {left}.
{notes}
Show it again, in this folder, with lockstep-llm installed:

    pytest .
    lockstep check .

Both judge the candidate of {candidate} and fail while it is wrong. To judge another:

    lockstep check . --candidate MODULE:FUNCTION

golden/                the reference's values at each probe, its noise, and the weights to load
evidence.safetensors   `expected` and `got` at the failing step, where an operation failed
capsule.json           all of this for programs
"""

_TEST = '''"""A failure of {name} on {case}, cut to what shows it (see README.txt); passes once it is mended."""

from pathlib import Path

import pytest

from conformance.capsule import Capsule


@pytest.fixture
def failures():
    """Made here, so that a capsule or a model that cannot be read is an error and no failure."""
    return Capsule(Path(__file__).parent).failures()


def test_the_candidate_does_what_the_reference_does(failures):
    assert not failures, "\\n".join(failures)
'''
