"""Two runs compared by their ratios, which other machines and busy hours move less than times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import RequestError

LEAST = 0.1  # of a ratio: what may come and go unreported

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Fall:
    """A ratio that is lower than it was, by more than its rounds differ in the mean of both runs."""

    scenario: str
    form: str
    against: str
    before: float
    now: float

    def __str__(self) -> str:
        lost = 1 - self.now / self.before
        return (
            f"{self.scenario}, {self.form} against {self.against}: "
            f"{self.before:.2f} before, {self.now:.2f} now ({lost:.0%} lower)"
        )


def read(path: Path) -> dict[str, Any]:
    """The document that an earlier run printed; RequestError where it is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read as JSON: {error}") from None
    wanted = ("schema", "model", "dtype", "ratios")
    if not isinstance(document, dict) or any(key not in document for key in wanted):
        raise RequestError(f"{path} is no document of lockstep bench --json")
    return document


def check_comparable(old: dict[str, Any], shape: str, dtype: str) -> None:
    """Raises RequestError unless both are of a model of one shape, in one dtype."""
    if old["model"]["shape"] != shape:
        raise RequestError(
            f"the runs are of different models: the earlier one is of {old['model']['name']}"
        )
    if old["dtype"] != dtype:
        raise RequestError(f"the earlier run is in {old['dtype']} and this one in {dtype}")


def fallen(old: dict[str, Any], new: dict[str, Any]) -> list[Fall]:
    """The ratios of both documents that fell; RequestError where they have none in common."""
    before, now = ({_key(r): r for r in document["ratios"]} for document in (old, new))
    both = [key for key in before if key in now]
    if not both:
        raise RequestError("the runs have no ratio in common: name the same forms")
    return list(_falls(both, before, now))


def _falls(
    keys: list[Key], before: dict[Key, dict[str, Any]], now: dict[Key, dict[str, Any]]
) -> Iterator[Fall]:
    for key in keys:
        old, new = before[key], now[key]
        lost = old["median"] - new["median"]
        spread = (old["most"] - old["least"] + new["most"] - new["least"]) / 2
        if lost > spread and lost >= LEAST * old["median"]:
            yield Fall(*key, old["median"], new["median"])


def _key(ratio: dict[str, Any]) -> Key:
    return ratio["scenario"], ratio["form"], ratio["against"]
