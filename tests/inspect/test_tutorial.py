"""The tutorial's text is its template filled with what was measured, and that is what comes out today."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "measurements" / "tutorial.py"
FOLDER = ROOT / "docs" / "tutorial"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorial", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorial"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "facts.json").read_text(encoding="utf-8"))
    return found


def test_the_text_is_what_the_facts_make_of_the_template(
    script: ModuleType, facts: dict[str, Any]
) -> None:
    written = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert script.filled(facts) == written


def test_the_pictures_are_drawn_from_the_facts(
    script: ModuleType, facts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.draw(facts)
    named = re.findall(r"!\[.+?\]\(tutorial/(.+?)\)", _text())
    assert sorted(named) == sorted(file.name for file in tmp_path.iterdir())
    for name in named:
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        assert drawn == (FOLDER / name).read_text(encoding="utf-8")
        ET.fromstring(drawn)  # noqa: S314 - it was just written here


def _text() -> str:
    return (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def test_each_fault_is_planted_in_the_engine_as_it_is(script: ModuleType) -> None:
    from conformance.mutants.planting import planted

    for experiment in script.EXPERIMENTS.values():
        compile(planted(experiment.fault), experiment.fault.file, "exec")
    assert len(script.EXPERIMENTS) == 6


def near(found: Any, told: Any, at: str = "") -> None:
    """The same, to the digits that the text has of numbers that rounding can move."""
    if isinstance(told, dict):
        assert found.keys() == told.keys(), at
        for name, value in told.items():
            near(found[name], value, f"{at}.{name}")
    elif isinstance(told, list):
        assert len(found) == len(told), at
        for i, value in enumerate(told):
            near(found[i], value, f"{at}[{i}]")
    elif isinstance(told, float):
        assert found == pytest.approx(told, rel=0.02, abs=1e-6), at
    elif at.startswith(".map"):
        assert abs(found - told) <= 20, at  # ten-thousandths
    else:
        assert found == told, at


def test_the_path_is_measured_again(
    script: ModuleType, facts: dict[str, Any], asset: Callable[[str], Path]
) -> None:
    asset("smollm2-135m")
    told = json.loads(json.dumps(facts["path"]))
    near(json.loads(json.dumps(script.facts_of("path"))), told)


def test_an_experiment_is_made_again(facts: dict[str, Any], asset: Callable[[str], Path]) -> None:
    """In a process of its own, as the fault is planted before anything is imported."""
    asset("smollm2-135m")
    command = [sys.executable, str(SCRIPT), "--facts", "scale"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    near(json.loads(done.stdout), facts["experiments"]["scale"])
