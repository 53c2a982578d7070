"""Takes the first failure of a check and makes one capsule of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.candidate import Candidate
from conformance.capsule.answers import pack_decision, pack_generation, pack_text
from conformance.capsule.draft import Run, size
from conformance.capsule.operation import pack_operation
from conformance.capsule.replay import is_capsule
from conformance.golden import Golden
from conformance.text import TextFinding
from conformance.verdict import Trial
from engine.command import check_writable
from engine.errors import LockstepError, RequestError


class Packer:
    """Fills `folder` once, with the first failure it is told of; `says` is a line for the user.

    An earlier capsule there is replaced; RequestError at once for a folder that holds anything else. A failure that cannot be packed
    stays the check's verdict, and `says` tells why there is no capsule.
    """

    def __init__(self, folder: Path) -> None:
        usable = not folder.exists() or is_capsule(folder)
        if not usable and (not folder.is_dir() or any(folder.iterdir())):
            raise RequestError(f"{folder} is not an empty folder; name a new one for the capsule")
        if not folder.exists():
            check_writable(folder)
        self.folder = folder
        self.done = False
        self.says = "nothing diverges: no capsule was written"

    def operation(
        self,
        candidate: Candidate,
        trials: Sequence[Trial],
        golden: Golden,
        model: Path,
        run: Run,
    ) -> None:
        """The first failure among a candidate's trials on one golden."""
        failed = next((t for t in trials if not t.conforms), None)
        if failed is not None:
            self._pack(lambda draft: pack_operation(draft, candidate, failed, golden, model, run))

    def generation(
        self,
        candidate: Candidate,
        findings: Sequence[TextFinding],
        golden: Golden,
        model: Path,
        run: Run,
    ) -> None:
        """A candidate's own loop that answered otherwise than the reference."""
        if findings:
            self._pack(
                lambda draft: pack_generation(draft, candidate, findings[0], golden, model, run)
            )

    def text(self, folder: Path, findings: Sequence[TextFinding], run: Run) -> None:
        """A stage of the tokenizer that answered otherwise on the text golden in `folder`."""
        if findings:
            self._pack(lambda draft: pack_text(draft, folder, findings[0], run))

    def decision(self, folder: Path, findings: Sequence[TextFinding], run: Run) -> None:
        """A stage of sampling or stopping that answered otherwise on the decisions golden."""
        if findings:
            self._pack(lambda draft: pack_decision(draft, folder, findings[0], run))

    def _pack(self, fill: Callable[[Path], None]) -> None:
        if self.done:
            return
        self.done = True
        with tempfile.TemporaryDirectory(prefix="lockstep-capsule-") as temporary:
            draft = Path(temporary) / "capsule"
            draft.mkdir()
            try:
                fill(draft)
            except LockstepError as error:
                self.says = f"no capsule was written: {error}"
                return
            if is_capsule(self.folder):
                shutil.rmtree(self.folder)
            shutil.copytree(draft, self.folder, dirs_exist_ok=True)
        kilobytes = size(self.folder) / 1000
        self.says = (
            f"capsule  {self.folder}, {kilobytes:.0f} kB; show it again: pytest {self.folder}"
        )
