"""Two runs compared: what counts as a fall, and which runs may be compared at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.bench.compare import check_comparable, fallen, read
from engine.errors import RequestError


def document(*ratios: tuple[str, float, float, float], **changes: Any) -> dict[str, Any]:
    """A run whose eager form was timed against transformers."""
    listed = [
        {
            "scenario": s,
            "form": "eager",
            "against": "transformers",
            "median": m,
            "least": a,
            "most": b,
        }
        for s, m, a, b in ratios
    ]
    model = {"name": "m", "shape": "abc", "parameters": 1}
    return {"schema": 1, "model": model, "dtype": "float32", "ratios": listed, **changes}


@pytest.mark.parametrize(
    ("before", "now", "falls"),
    [
        ((2.0, 2.0, 2.0), (1.79, 1.79, 1.79), True),
        ((2.0, 2.0, 2.0), (1.81, 1.81, 1.81), False),  # less than a tenth
        ((2.0, 1.8, 2.2), (1.7, 1.6, 1.8), False),  # 0.3 lower; half of both spreads is 0.3
        ((2.0, 1.8, 2.2), (1.69, 1.59, 1.79), True),
        ((2.0, 1.0, 3.0), (1.2, 1.1, 1.3), False),  # the old run did not know itself
        ((1.0, 1.0, 1.0), (3.0, 3.0, 3.0), False),  # it rose
    ],
)
def test_a_fall_is_a_tenth_and_more_than_the_rounds_differ(
    before: tuple[float, float, float], now: tuple[float, float, float], falls: bool
) -> None:
    found = fallen(document(("decode", *before)), document(("decode", *now)))
    assert bool(found) == falls


def test_a_fall_says_what_fell_and_how_far() -> None:
    old = document(("decode", 2.0, 2.0, 2.0), ("prefill", 1.0, 1.0, 1.0))
    [fall] = fallen(old, document(("decode", 1.5, 1.5, 1.5), ("prefill", 1.0, 1.0, 1.0)))
    assert str(fall) == "decode, eager against transformers: 2.00 before, 1.50 now (25% lower)"


def test_what_only_one_run_measured_is_no_fall() -> None:
    old = document(("decode", 2.0, 2.0, 2.0), ("prefill", 1.0, 1.0, 1.0))
    assert fallen(old, document(("decode", 2.0, 2.0, 2.0))) == []
    with pytest.raises(RequestError, match="no ratio in common"):
        fallen(old, document(("loading", 2.0, 2.0, 2.0)))


def test_other_models_and_dtypes_are_refused() -> None:
    """Other machines are not: ratios are for that."""
    old = document(environment={"processor": "another"})
    check_comparable(old, "abc", "float32")
    with pytest.raises(RequestError, match="of different models: the earlier one is of m"):
        check_comparable(old, "abd", "float32")
    with pytest.raises(
        RequestError, match="the earlier run is in float32 and this one in bfloat16"
    ):
        check_comparable(old, "abc", "bfloat16")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"schema": 1, "ratios": []})])
def test_what_is_no_document_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(RequestError, match=r"old\.json"):
        read(file)
    with pytest.raises(RequestError, match=r"missing\.json"):
        read(tmp_path / "missing.json")
