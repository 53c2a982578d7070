"""What the tests of inspections share: tiny engines, and what is gathered of one prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.inspect import inspected
from tests.cli.conftest import call  # noqa: F401  (a fixture)
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to every module here)

#: Special tokens, white space, characters of several bytes, and one word of many merges.
TEXT = "Naïve  123 transformers 😀<|end|>\n"


@pytest.fixture(scope="session")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random llama with a Llama-3-like tokenizer."""
    return tiny.text_folder(
        tmp_path_factory.mktemp("inspected") / "speaks", max_position_embeddings=256
    )


@pytest.fixture(scope="session")
def engine(speaking: Path) -> Engine:
    return Engine.load(speaking)


@pytest.fixture(scope="session")
def document(engine: Engine) -> dict[str, Any]:
    return inspected(engine, TEXT, SamplingParams(max_tokens=5, ignore_eos=True))


@pytest.fixture(scope="session")
def windowed() -> Engine:
    """A tiny Gemma 2: a window of 8 tokens in two layers of three, and a vocabulary without text."""
    return Engine.load(REPOSITORY_GOLDENS / "gemma2")
