"""How numbers are written down on a page: in few digits, and always as a number."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor


def ten_thousandths(weights: Tensor) -> list[int]:
    """Shares from 0 to 1 in whole ten-thousandths: a percentage of two decimals."""
    rounded: list[int] = (weights.double() * 10_000).round().int().tolist()
    return rounded


def short(value: float, digits: int = 5) -> float | None:
    """So many significant digits; None for what is no finite number."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def all_short(values: Iterable[float], digits: int = 5) -> list[float | None]:
    return [short(value, digits) for value in values]
