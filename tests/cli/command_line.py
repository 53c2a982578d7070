"""What the tests of commands share: models, a prompt, and what every error looks like."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = ROOT / "golden" / "llama-gqa"
PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]

#: Runs one command line in this process: (exit status, standard output, standard error).
Call = Callable[..., tuple[int, str, str]]


def is_one_sentence(err: str) -> bool:
    """Progress may come before it."""
    *_, last = err.splitlines()
    return last.startswith("error: ") and err.count("error: ") == 1 and "Traceback" not in err
