"""What these tests share: one thread, and a tiny model that speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import Engine
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to every module here)


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random llama with a Llama-3-like tokenizer."""
    return tiny.text_folder(tmp_path_factory.mktemp("models") / "speaks")


@pytest.fixture(scope="session")
def engine(text_model: Path) -> Engine:
    return Engine.load(text_model)
