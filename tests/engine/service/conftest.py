"""An engine whose calls share a small cache, and what each prompt is answered with by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine
from tests.engine import tiny
from tests.engine.service.sharing import (
    ASKED,
    Said,
    cramped,
    is_empty,
    said,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.text_folder(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    """One whose calls share nothing."""
    return Engine.load(folder)


@pytest.fixture(scope="module")
def alone(plain: Engine) -> list[Said]:
    """What each of the prompts is answered with by itself."""
    answers = [said(list(plain.stream(*asked))) for asked in ASKED]
    assert len({tuple(token_ids) for _, token_ids, _ in answers}) == len(ASKED)
    return answers


@pytest.fixture
def shared(folder: Path) -> Iterator[Engine]:
    """One whose calls share few blocks; in the end all of them are there again, and nobody is known."""
    engine = cramped(folder)
    yield engine
    is_empty(engine)
