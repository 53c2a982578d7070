"""What these tests share: one thread, and a tiny model that speaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import Engine
from tests.engine import tiny


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random llama with a Llama-3-like tokenizer."""
    return tiny.text_folder(tmp_path_factory.mktemp("models") / "speaks")


@pytest.fixture(scope="session")
def engine(text_model: Path) -> Engine:
    return Engine.load(text_model)
