"""Processes that run a module of this checkout: where it is imported from, what it said last, how it ends.

`run_module` passes on the progress and the error of one: `progress: ...` and `error: ...` on standard
error, a line each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from engine.errors import LockstepError

Say = Callable[[str], None]

ROOT = Path(__file__).resolve().parents[1]  # a checkout need not be installed


_NOTHING = "it said nothing"


def found_first(path: Sequence[Path] = (ROOT,)) -> dict[str, str]:
    """This environment, in which Python imports from `path` before anything that is installed."""
    first = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(first)}


def last_line(errors: IO[bytes]) -> str:
    """What a process said last, by the file that its standard error went to."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), _NOTHING)


def ended(process: subprocess.Popen[Any], patience: float) -> None:
    """Waits so many seconds for a process to end by itself, and kills it then."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_module(
    module: str,
    arguments: Sequence[str],
    *,
    failed: str,
    prefix: str,
    say: Say,
    path: Sequence[Path] = (ROOT,),
) -> None:
    """Runs `python -m module`, importing from `path` before anything that is installed.

    Raises LockstepError with the module's own sentence at status 2; for any other failure with
    `failed` and the last that the process said.
    """
    last: deque[str] = deque([_NOTHING], maxlen=1)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=found_first(path),
    ) as process:
        assert process.stderr is not None
        for line in filter(None, map(str.rstrip, process.stderr)):
            if line.startswith("progress: "):
                say(prefix + line.removeprefix("progress: "))
            else:
                last.append(line)
    if process.returncode == 2 and last[0].startswith("error: "):
        raise LockstepError(last[0].removeprefix("error: "))
    if process.returncode != 0:
        raise LockstepError(f"{failed} (status {process.returncode}): {last[0]}")
