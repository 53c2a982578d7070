"""The oracle as a process: `case NAME OUT [MODEL]` makes a committed golden, `live` one for a check.

Progress goes to standard error in lines that begin with `progress: `, an error in one with `error: `.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import transformers  # noqa: E402

from conformance.cases import CASES, REAL_CASES  # noqa: E402
from conformance.oracle.capture import capture_case, capture_live, capture_real  # noqa: E402
from conformance.oracle.text import capture_text_case  # noqa: E402
from conformance.text_cases import TEXT_CASES  # noqa: E402
from engine.errors import LockstepError  # noqa: E402


def say(message: str) -> None:
    print(f"progress: {message}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    match arguments:
        case ["case", name, out, *model]:
            for tiny in CASES:
                if tiny.name == name:
                    capture_case(tiny, Path(out), say)
            for real in REAL_CASES:
                if real.name == name:
                    capture_real(real, Path(model[0]), Path(out), say)
            for text in TEXT_CASES:
                if text.name == name:
                    capture_text_case(text, Path(out))
        case ["live", name, model_path, out, dtype]:
            capture_live(name, Path(model_path), Path(out), dtype, say)
        case _:
            raise LockstepError("usage: python -m conformance.oracle case NAME OUT [MODEL]")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        main(sys.argv[1:])
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
