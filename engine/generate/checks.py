"""Checks of what a caller asks for; each raises RequestError with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from engine.errors import RequestError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)


def shown(value: Any) -> str:
    """How Python writes a value, its first 60 characters."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # it writes no whole numbers of thousands of digits
        return "a number of thousands of digits"


def items(name: str, value: Any) -> tuple[Any, ...]:
    """Those of a list."""
    try:
        return tuple(value)
    except TypeError:
        raise RequestError(f"{name} must be a list, got {shown(value)}") from None


def integer(name: str, value: Any, least: int) -> int:
    """The number as Python's own, which has no largest one."""
    # Python counts True as 1; whoever writes it means something else.
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(
        whole and value >= least,
        f"{name} must be a whole number of at least {least}, got {shown(value)}",
    )
    return int(value)


def boolean(name: str, value: Any) -> None:
    require(isinstance(value, bool), f"{name} must be true or false, got {shown(value)}")


def number(name: str, value: Any, range_: str, fits: Callable[[float], bool]) -> float:
    """The number as a float."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    try:
        good = real and fits(float(value))
    except OverflowError:  # a whole number beyond the largest float
        good = False
    require(good, f"{name} must be a number {range_}, got {shown(value)}")
    return float(value)
