"""The engine as it was at a revision of this project's git repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from conformance.process import ROOT
from engine.errors import LockstepError, RequestError


def check_out(revision: str, out: Path) -> str:
    """Writes the engine of a git revision into `out`, and gives the commit's full name."""
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if not commit:
        raise RequestError(
            f"git knows no revision {revision!r} here; name a commit, a branch or a tag, "
            "and put TARGET after it: --since HEAD TARGET"
        )
    name = commit.decode().strip()
    packed = _git("archive", "--format=tar", name, "engine")
    if not packed:
        raise RequestError(f"there is no engine at revision {revision!r}; name a later one")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(out, filter="data")
    return name


def _git(*arguments: str) -> bytes:
    """What git answers about this checkout; nothing where it refuses."""
    try:
        inside = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse"], capture_output=True, check=False
        )
        if inside.returncode != 0:
            raise RequestError(
                f"--since needs a git checkout, and {ROOT} is none; clone the project"
            )
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, check=False
        ).stdout
    except FileNotFoundError:
        raise LockstepError("--since needs git, and there is none; install it") from None
