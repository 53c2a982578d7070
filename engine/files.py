"""What every reader of a model's files needs: JSON files that hold an object, long lists said shortly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import ModelFileError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; anything else is a ModelFileError that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON ({type(error).__name__}: {error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def few(items: Sequence[str], shown: int = 3) -> str:
    """`a, b, c and 21 more`."""
    more = len(items) - shown
    return ", ".join(items[:shown]) + (f" and {more} more" if more > 0 else "")
