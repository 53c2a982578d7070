"""A tiny model, its engine, and a server of it: made once for all modules here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine
from tests.engine.tiny import one_thread  # noqa: F401  (applies to every module here)
from tests.server.serving import Client, serving, speaking_folder


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of this machine's has no business between a test and its own server."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("LOCKSTEP_API_KEY", raising=False)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking_folder(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """The one that is served, in a cache that all requests share."""
    return Engine.load(folder, cache="paged")


@pytest.fixture(scope="session")
def plain(folder: Path) -> Engine:
    """Another of the same model, whose calls share nothing: what it says is right."""
    return Engine.load(folder)


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Client]:
    """In the end nobody is served, and all blocks are free again."""
    with serving(engine) as client:
        free = client.metric("cache_blocks_free")
        yield client
        assert client.at_rest
        assert client.metric("cache_blocks_free") == free == client.metric("cache_blocks_total")
