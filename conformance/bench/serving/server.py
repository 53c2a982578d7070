"""A server in a process of its own, as a user starts it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from conformance.bench.forms import Form
from conformance.process import ended, found_first, last_line
from engine.errors import LockstepError

NAME = "served"
_READY = re.compile(r"serving .* at http://.*:(\d+)\s*")
_PATIENCE = 30  # seconds to end


class Server:
    """`python -m engine serve` of a model in a form; `port` once it is ready, compiled or not.

    `step_tokens` are those of a forward pass at most, None for as many as it takes by itself.

    Raises LockstepError with what it said last where it ends before that.
    """

    def __init__(
        self, model: Path, form: Form, step_tokens: int | None, device: str, threads: int | None
    ) -> None:
        options = ["--device", device, "--dtype", form.dtype]
        if step_tokens is not None:
            options += ["--step-tokens", str(step_tokens)]
        if form.is_compiled:
            options.append("--compiled")
        if quantization := form.options.get("quantization"):
            options += ["--quantization", str(quantization)]
        command = [sys.executable, "-P", "-m", "engine", "serve", str(model), "--port", "0"]
        environment = found_first()
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [*command, "--served-name", NAME, *options],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        try:
            self.port = self._ready()
        except BaseException:
            self.close()
            raise

    def _ready(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.fullmatch(line):
                return int(ready[1])
        self._process.wait()
        raise LockstepError(f"the server ended before it was ready: {last_line(self._errors)}")

    def memory(self) -> int:
        """Resident bytes now; 0 where the system does not say."""
        status = Path(f"/proc/{self._process.pid}/status")
        if not status.exists():
            return 0
        held = re.search(r"^VmRSS:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        return int(held[1]) * 1024 if held else 0

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.terminate()
        ended(self._process, _PATIENCE)
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
