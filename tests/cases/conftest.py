"""Tiny models that the public cases share."""

from __future__ import annotations

import pytest

from tests.cases.models import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))
