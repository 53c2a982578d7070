"""Goldens of a user's own models, made when they are first needed and kept by what they were made from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from conformance.golden import (
    FORMAT,
    REPOSITORY_GOLDENS,
    is_golden,
    read_manifest,
    sha256,
    verify_hashes,
)
from conformance.goldens import run_oracle
from conformance.process import Say
from engine.errors import LockstepError, ModelFileError
from engine.models import cache_dir

#: What takes part in making a golden besides the oracle's own folder.
_MAKERS = ("candidate.py", "envelope.py", "golden.py", "lockstep.py", "reorder.py")


def golden_of(model: str, path: Path, dtype: str, say: Say) -> Path:
    """The golden to check MODEL, which lies at `path`, against: live where that can be, else committed."""
    if importlib.util.find_spec("transformers"):
        return live_golden(model, path, dtype, say)
    committed = REPOSITORY_GOLDENS / model
    if not is_golden(committed):
        raise LockstepError(
            f"checking {model} needs transformers: pip install 'lockstep-llm[oracle]', "
            "or name a golden with --golden"
        )
    return committed


def live_golden(model: str, path: Path, dtype: str, say: Say) -> Path:
    """The folder of a golden of a model on disk, in `dtype`, in the cache.

    It is made by the oracle's own process unless one of the same content is there whole; parallel
    processes wait for the one that makes it, and a half-made one is never seen.
    """
    home = cache_dir() / "goldens"
    try:
        home.mkdir(parents=True, exist_ok=True)
        digest = _digest(model, path, dtype)
        folder = home / digest
        with FileLock(home / f"{digest}.lock"):
            if not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=".making-", dir=home) as making:
                    draft = Path(making) / digest
                    draft.mkdir()
                    say(f"oracle: a golden of {model} in {dtype}, kept for the next time")
                    run_oracle(
                        ["live", model, str(path.resolve()), str(draft.resolve()), dtype],
                        "oracle: ",
                        say,
                    )
                    draft.rename(folder)
    except OSError as error:
        raise LockstepError(
            f"the golden of {model} cannot be kept in {home} ({error.strerror or error}); set "
            "LOCKSTEP_CACHE to a folder that can be written"
        ) from error
    return folder


def _digest(model: str, path: Path, dtype: str) -> str:
    """Of all that decides what a golden says: names, the model's files, dtype, versions, sources."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    sources = Path(__file__).parent
    makers = [*sorted((sources / "oracle").glob("*.py")), *(sources / name for name in _MAKERS)]
    about = {
        "model": model,
        "files": {file.name: sha256(file) for file in files if not file.name.startswith(".")},
        "dtype": dtype,
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "torch")},
        "format": FORMAT,
        "sources": {file.name: sha256(file) for file in makers},
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _is_whole(folder: Path) -> bool:
    try:
        verify_hashes(folder, read_manifest(folder))
    except ModelFileError:
        return False
    return True
