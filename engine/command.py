"""What every command shares: exit status, errors as one sentence, JSON, files written whole or not.

Results go to standard output, progress and errors to standard error. Exit status: 0 done, 1 (the
conformance suite's) diverges, 2 the request or the environment is at fault, 130 interrupted.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engine.errors import LockstepError, RequestError

if TYPE_CHECKING:
    from torch import Tensor

OK, AT_FAULT, INTERRUPTED, BROKEN_PIPE = 0, 2, 130, 141


def run(app: typer.Typer, prog: str, argv: Sequence[str]) -> int:
    """Runs one command line and gives its exit status; it never shows a traceback unasked."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a console may speak something else than UTF-8
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        return _invoke(app, prog, list(argv))
    except LockstepError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        see = f" (see {context.command_path} --help)" if context else ""
        return _fail(" ".join(error.format_message().split()).rstrip(".") + see)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:
        # Not the user's fault, yet never to be mistaken for a verdict (status 1).
        if os.environ.get("LOCKSTEP_TRACEBACK"):
            traceback.print_exc()
        return _fail(
            f"a bug in lockstep, {type(error).__name__}: {' '.join(str(error).split())} "
            "(LOCKSTEP_TRACEBACK=1 shows where)"
        )


def _invoke(app: typer.Typer, prog: str, argv: list[str]) -> int:
    command = typer.main.get_command(app)
    status = OK
    try:
        with command.make_context(prog, argv) as context:
            command.invoke(context)
    except typer.Exit as done:
        status = done.exit_code
    sys.stdout.flush()
    return status


def _fail(sentence: str) -> int:
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    return AT_FAULT


def json_text(document: Any, indent: int | None = None) -> str:
    """JSON as the standard has it: an infinite number or a NaN becomes its name, as a string."""
    return json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def check_writable(out: Path) -> None:
    """Refuses a target that cannot be written, before the work that would fill it is done."""
    if out.is_dir():
        raise RequestError(f"{out} is a folder; name a file to write")
    if out.is_symlink() or (out.exists() and not out.is_file()):
        # The finished draft is renamed over its target: that must not take the place of a device.
        raise RequestError(f"{out} is a link, a device or a pipe; name a regular file to write")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"the folder {out.absolute().parent} does not exist; create it first")
    if not os.access(out.absolute().parent, os.W_OK):
        raise RequestError(f"the folder {out.absolute().parent} cannot be written to")


@contextmanager
def atomically(out: Path) -> Iterator[Path]:
    """A path beside `out` that becomes `out` when all went well, and is removed when not."""
    draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        yield draft
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def save_tensors(tensors: Mapping[str, Tensor], out: Path) -> None:
    """Writes a safetensors file whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with atomically(out) as draft:
            save_file({name: value.contiguous() for name, value in tensors.items()}, draft)
    except SafetensorError as error:
        raise LockstepError(f"{out} could not be written: {error}") from None
