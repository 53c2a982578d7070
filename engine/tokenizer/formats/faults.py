"""The errors of what a tokenizer's file says."""

from __future__ import annotations

from typing import Any

from engine.errors import ModelFileError


def unsupported(source: str, stage: str, spec: Any) -> ModelFileError:
    """Return the error of a component that is not known; `stage` is where it stands."""
    name = spec.get("type", "without a type") if isinstance(spec, dict) else spec
    return ModelFileError(f"{source}: the {stage} {name!r:.60} is not supported")


def damaged(source: str, what: str, error: object) -> ModelFileError:
    """Return the error of a component that does not hold what it must."""
    return ModelFileError(f"{source}: the {what} is damaged ({error!s:.300}): fetch the file again")
