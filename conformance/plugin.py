"""pytest hooks and fixtures, nothing else.

    pytest --lockstep-model MODEL [--lockstep-device cuda] [--lockstep-dtype bfloat16]
           [--lockstep-candidate module:factory]

judges a model, or an engine of one's own on it, in a session of any project (see `matrix`). Tests
named on the command line run as well.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "a model in lockstep with transformers")
    group.addoption("--lockstep-model", metavar="MODEL", help="folder, .gguf file or known name")
    group.addoption("--lockstep-golden", metavar="DIR", help="a golden, not live transformers")
    group.addoption("--lockstep-device", metavar="DEVICE", default="cpu", help="cpu or cuda")
    group.addoption(
        "--lockstep-dtype", metavar="DTYPE", default="float32", help="float32, bfloat16 or float16"
    )
    group.addoption(
        "--lockstep-candidate",
        metavar="MODULE:FACTORY",
        help="another engine than this project's, by the function that makes its candidates",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lockstep: runs goldens against an engine")
    if config.getoption("--lockstep-model"):
        return
    for option in ("--lockstep-golden", "--lockstep-candidate"):
        if config.getoption(option):
            raise pytest.UsageError(f"{option} goes with --lockstep-model")


def _model_alone(config: pytest.Config) -> bool:
    """A model was named and no test was."""
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    return config.getoption("--lockstep-model") is not None and not named


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if _model_alone(config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    if session.config.getoption("--lockstep-model") is not None:
        from conformance.matrix import model_checks

        items[:0] = model_checks(session)
