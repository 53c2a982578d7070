"""`lockstep serve` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from tests.server.serving import NAME, PATIENCE, Client

ROOT = Path(__file__).parents[2]
_READY = re.compile(r"serving (\S+) at http://127\.0\.0\.1:(\d+)\n")


@contextmanager
def served(
    model: Path, *options: str, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """The process and a client of it, from when it says that it is ready; killed in the end if need be."""
    command = [sys.executable, "-m", "engine", "serve", str(model), "--served-name", NAME]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: Queue[str] = Queue()
    errors: list[str] = []
    assert process.stdout is not None and process.stderr is not None
    readers = [
        Thread(target=lambda: [said.put(line) for line in process.stdout or ()], daemon=True),
        Thread(target=lambda: errors.extend(process.stderr or ()), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        try:
            line = said.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"nothing was said: {''.join(errors)}") from None
        ready = _READY.fullmatch(line)
        assert ready, line
        assert ready[1] == NAME
        yield process, Client(int(ready[2]))
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    assert said.empty(), "standard output has one line"
    assert "Traceback" not in "".join(errors), "".join(errors)
