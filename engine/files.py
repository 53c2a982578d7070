"""What every reader of a model's files needs: text and JSON files, long lists said shortly."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError

SHOWN = 3  # entries of a long list that are said
# The escape of half a pair of surrogates; both halves together stand for a character.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_bytes(path: Path) -> bytes:
    """A file's content; a ModelFileError names a file that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """A file's UTF-8 text; anything else is a ModelFileError that names the file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path} is not UTF-8 text ({error.reason})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is a ModelFileError that names the file."""
    text = read_text(path)
    try:
        with garbage_left_alone():
            value = json.loads(text)
            if _SURROGATE.search(text):
                json.dumps(
                    value, ensure_ascii=False
                ).encode()  # which a half without its other is not
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON ({type(error).__name__}: {error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


@contextmanager
def garbage_left_alone() -> Iterator[None]:
    """Collect no garbage meanwhile: of the half million lists of a large file none is any, and
    walking them, or what is made of them, again and again takes as long as reading them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
            gc.collect(1)  # once, and not in the midst of what comes next


def few(items: Sequence[str]) -> str:
    """`a, b, c and 21 more`."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")
