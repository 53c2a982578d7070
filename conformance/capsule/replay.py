"""Opens a capsule and judges a candidate by it, with the machinery that found the failure.

capsule.json            what failed and how it was cut; the candidate, and the steps it is fed
golden/                 the golden, cut down: truth by the oracle, noise, a slice of the weights
evidence.safetensors    `expected` and `got` of the failing step, where it was an operation
test_capsule.py         the failure as a pytest file
README.txt              the same in words
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.candidate import Candidate, Level, factory, made
from conformance.decisions import check_decisions
from conformance.generation import answer
from conformance.golden import Golden, read_manifest, verify_hashes
from conformance.report import TextTrial
from conformance.text import check_text
from conformance.verdict import Trial, shorten, trial
from engine.assets import KNOWN
from engine.device import DTYPES
from engine.errors import LockstepError, ModelFileError
from engine.models import cached, resolve

FORMAT = 1
_KEYS = {"kind", "case", "candidate", "name", "device", "dtype", "level", "schedule", "failure"}


def is_capsule(folder: Path) -> bool:
    """Whether a folder looks like a capsule."""
    return (folder / "capsule.json").is_file()


class Capsule:
    """A capsule, opened and verified; ModelFileError if it is damaged."""

    def __init__(self, folder: Path) -> None:
        self.golden = folder / "golden"
        path = folder / "capsule.json"
        try:
            self.about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            lacking = _KEYS - set(self.about)
        except (OSError, ValueError, TypeError) as error:
            raise ModelFileError(f"{path} is no capsule: {error}") from None
        if lacking or self.about.get("format") != FORMAT:
            raise ModelFileError(
                f"{path} is no capsule that this version reads; make it again with: "
                "lockstep check --capsule"
            )
        verify_hashes(self.golden, read_manifest(self.golden))

    def judge(self, maker: str | None = None) -> Trial | TextTrial:
        """The verdict on the capsule's own candidate, or on the one that the factory `maker` makes."""
        case = str(self.about["case"])
        if self.about["kind"] == "text":
            return TextTrial(case, "tokenizer", tuple(check_text(self.golden)))
        if self.about["kind"] == "decisions":
            return TextTrial(case, "decisions", tuple(check_decisions(self.golden)))
        golden = Golden(self.golden)
        candidate = self._candidate(golden, maker or str(self.about["candidate"]))
        dtype, level = DTYPES[self.about["dtype"]], Level[self.about["level"]]
        if self.about["kind"] == "generation":
            said = answer(candidate, golden, golden.envelope("free", dtype), level)
            return TextTrial(case, "generation", said.findings, said.text, said.follows)
        return trial(candidate, golden, dtype, self.about["schedule"], level)

    def failures(self, maker: str | None = None) -> list[str]:
        """What is still wrong, a line each: culprits first; none once the failure is mended."""
        verdict = self.judge(maker)
        if verdict.conforms:
            return []
        if isinstance(verdict, TextTrial):
            return [str(finding) for finding in verdict.findings]
        if verdict.culprits:
            places = [f"  {shorten(c.file)}:{c.line}" if c.file else "" for c in verdict.culprits]
            found = zip(verdict.culprits, places, strict=True)
            return [f"culprit  {c.finding}{place}" for c, place in found]
        return str(verdict).splitlines()

    def _candidate(self, golden: Golden, maker: str) -> Candidate:
        device, dtype = str(self.about["device"]), str(self.about["dtype"])
        found = made(factory(maker), _checkpoint(golden), device, dtype)
        return next((c for c in found if c.name == self.about["name"]), found[0])


def _checkpoint(golden: Golden) -> Path:
    """The slice of the weights in the capsule, or the model that it takes them from."""
    name = str(golden.manifest["checkpoint"])
    if name not in KNOWN:
        return golden.folder if name == "." else resolve(name)
    path = cached(name)
    if path is None:
        raise LockstepError(
            f"the capsule's weights are those of {name}, which is not here; "
            f"get it with: lockstep fetch {name}"
        )
    if golden.manifest["checkpoint_sha256"] != KNOWN[name].files[0].sha256:
        raise ModelFileError(f"the capsule was made with another {name}; make it again")
    return path
