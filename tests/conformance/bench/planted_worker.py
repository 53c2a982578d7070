"""A worker that says it took as long for each token as it is told; without torch it is there at once."""

from __future__ import annotations

import os
import sys
from typing import Any

from conformance.bench.worker import Questions, serve
from conformance.process import Say
from engine.errors import LockstepError


def start(settings: dict[str, Any], say: Say) -> Questions:
    if "refuses" in settings:
        raise LockstepError(settings["refuses"])
    say("waking up")
    sys.stdout.write("what a library prints\n")
    sys.stdout.flush()
    step: float = settings["step"]

    def took(tokens: int) -> dict[str, Any]:
        return {"seconds": tokens * step, "ids": [list(range(tokens))]}

    def fail() -> None:
        raise LockstepError("no\nidea")

    def end() -> None:
        sys.stderr.write("out of memory, said the kernel\n\n")
        sys.stderr.flush()
        os._exit(3)

    return {
        "start": lambda prompt: {"loaded": step, "first_answer": step},
        "memory": lambda prompt, n: {"before": 1, "start": 2, "answer": 2},
        "decode": lambda prompts, n: took(n),
        "prefill": lambda prompt: took(len(prompt)),
        "fail": fail,
        "end": end,
        "process": os.getpid,
    }


if __name__ == "__main__":
    serve(start)
