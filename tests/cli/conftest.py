"""What the tests of commands share: a way to run one, and a real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cli import app
from engine import Engine
from engine.command import run
from tests.cli.command_line import Call


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def call(*argv: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run(app, "lockstep", [str(part) for part in argv])
        return (status, *capfd.readouterr())

    return call


@pytest.fixture
def smollm2(asset: Callable[[str], Path]) -> Path:
    return asset("smollm2-135m")


@pytest.fixture(scope="session")
def engine(asset: Callable[[str], Path]) -> Engine:
    return Engine.load(asset("smollm2-135m"))


@pytest.fixture
def loaded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model that commands find loaded already, which spares seconds in each call."""
    monkeypatch.setattr("engine.Engine.load", lambda model, **options: engine)
    return "smollm2-135m"
