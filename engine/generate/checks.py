"""Checks of what a caller asks for; each raises RequestError with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from engine.errors import RequestError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)


def items(name: str, value: Any) -> tuple[Any, ...]:
    """Those of a list."""
    try:
        return tuple(value)
    except TypeError:
        raise RequestError(f"{name} must be a list, got {value!r:.60}") from None


def integer(name: str, value: Any, least: int) -> None:
    # Python counts True as 1; whoever writes it means something else.
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(
        whole and value >= least,
        f"{name} must be a whole number of at least {least}, got {value!r:.60}",
    )


def boolean(name: str, value: Any) -> None:
    require(isinstance(value, bool), f"{name} must be true or false, got {value!r:.60}")


def number(name: str, value: Any, range_: str, fits: Callable[[Any], bool]) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    try:
        good = real and fits(float(value))
    except OverflowError:  # a whole number beyond the largest float
        good = False
    require(good, f"{name} must be a number {range_}, got {value!r:.60}")
