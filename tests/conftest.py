"""What the tests share: Hypothesis profiles, real files by name, and a lock on the network."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from engine.errors import LockstepError

# Tests fetch through `asset` alone; a model hub is never asked.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Parallel workers that each start a thread per core would spend their time waiting for each other.
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if _workers > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=10_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.getenv("CI") else "dev"))


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The plugin comes with the installed distribution; from a bare checkout it is loaded here."""
    del parser
    if not pluginmanager.has_plugin("lockstep"):
        pluginmanager.import_plugin("conformance.plugin")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m lockstep` is run after every edit: it imports no module that it would not run."""
    if config.option.markexpr != "lockstep" or not collection_path.name.startswith("test_"):
        return None
    is_file = collection_path.suffix == ".py"
    marked = is_file and "pytest.mark.lockstep" in collection_path.read_text(encoding="utf-8")
    return None if marked or not is_file else True


@pytest.fixture(scope="session")
def asset() -> Callable[[str], Path]:
    """`asset(name)` is the path of a real model or tokenizer that `lockstep fetch` knows.

    Where it cannot be had the test is skipped with the reason; LOCKSTEP_REQUIRE_ASSETS=1, which CI
    sets, makes that a failure.
    """
    from engine.models import fetch

    found: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in found:
            try:
                found[name] = fetch(name, progress=False)  # parallel workers wait for each other
            except LockstepError as error:
                if os.environ.get("LOCKSTEP_REQUIRE_ASSETS") == "1":
                    pytest.fail(f"{name} is required and cannot be had: {error}")
                pytest.skip(f"{name} cannot be had: {error}")
        return found[name]

    return get
