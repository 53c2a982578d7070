"""Processes that answer one question after another: what is timed shares none with its rivals.

The parent writes a line of JSON for each question, and waits. A worker says {"progress": ...} as often
as it likes, and then {"answer": ...}, or {"error": ...} in one sentence. While the others are asked it
waits for a line, and computes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from conformance.process import Say, ended, found_first, last_line
from engine.errors import LockstepError

#: What a worker can be asked, by name; each takes the question's details as keywords.
Questions = Mapping[str, Callable[..., Any]]

_PATIENCE = 10  # seconds for a worker to end by itself


class Asked(Protocol):
    """Whoever answers: a worker, or what stands for one in a test."""

    def ask(self, question: str, **details: Any) -> Any: ...


class Worker:
    """The parent's end: `python -m module`, started with `settings`, known by `name`.

    Raises LockstepError, which begins with the name, where the worker gives an error or ends.
    """

    def __init__(
        self,
        name: str,
        module: tuple[str, ...],
        settings: Mapping[str, Any],
        say: Say,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._say = name, say
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env={**found_first(), **(environment or {})},
        )
        self._settings: Mapping[str, Any] | None = settings

    def ask(self, question: str, **details: Any) -> Any:
        """The worker's answer; what it says of its progress is passed on."""
        if self._settings is not None:
            settings, self._settings = self._settings, None
            self._talk(settings)
        return self._talk({"question": question, **details})

    def _talk(self, line: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        for said in map(json.loads, self._process.stdout):
            if "progress" in said:
                self._say(f"{self.name}: {said['progress']}")
            elif "error" in said:
                raise LockstepError(f"{self.name}: {said['error']}")
            else:
                return said["answer"]
        raise self._ended()

    def _ended(self) -> LockstepError:
        """What a process that ended unasked said last."""
        status = self._process.wait()
        said = last_line(self._errors)
        return LockstepError(f"{self.name} ended with status {status}: {said}")

    def close(self) -> None:
        """Ends the process, which has nothing to finish once nobody asks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended
        ended(self._process, _PATIENCE)
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(start: Callable[[dict[str, Any], Say], Questions]) -> None:
    """The worker's end: `start` takes the settings and gives what can be asked; until the input ends.

    What libraries print goes to standard error.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)

        def reply(kind: str, said: Any) -> None:
            out.write(json.dumps({kind: said}) + "\n")
            out.flush()

        questions: Questions = {}
        for line in map(json.loads, sys.stdin):
            try:
                if "question" in line:
                    reply("answer", questions[line.pop("question")](**line))
                else:
                    questions = start(line, lambda message: reply("progress", message))
                    reply("answer", None)
            except LockstepError as error:
                reply("error", " ".join(str(error).split()))
