"""Runs a module of this package in a process of its own, and passes on its progress and its error.

The module says `progress: ...` and `error: ...` on standard error, a line each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import LockstepError

Say = Callable[[str], None]

ROOT = Path(__file__).resolve().parents[1]  # a checkout need not be installed


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
    found_first = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    last: deque[str] = deque(["it said nothing"], maxlen=1)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found_first)},
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
