"""Goldens of the repository, opened once."""

from __future__ import annotations

import pytest

from conformance.golden import REPOSITORY_GOLDENS, Golden


@pytest.fixture(scope="session")
def golden() -> Golden:
    """The plainest tiny llama."""
    return Golden(REPOSITORY_GOLDENS / "llama-gqa")
