"""pytest hooks and fixtures, nothing else.

    pytest --lockstep-model MODEL [--lockstep-device cuda] [--lockstep-dtype bfloat16]

judges a model in a session of any project: a test each for its words, its logits, the operations of
its decoder and its cache. Tests named on the command line run as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conformance.report import Report
    from conformance.verdict import Trial

_REPORT = pytest.StashKey["Report"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "a model in lockstep with transformers")
    group.addoption("--lockstep-model", metavar="MODEL", help="folder, .gguf file or known name")
    group.addoption("--lockstep-golden", metavar="DIR", help="a golden, not live transformers")
    group.addoption("--lockstep-device", metavar="DEVICE", default="cpu", help="cpu or cuda")
    group.addoption(
        "--lockstep-dtype", metavar="DTYPE", default="float32", help="float32, bfloat16 or float16"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--lockstep-golden") and not config.getoption("--lockstep-model"):
        raise pytest.UsageError("--lockstep-golden goes with --lockstep-model")


def _model_alone(config: pytest.Config) -> bool:
    """A model was named and no test was."""
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    return config.getoption("--lockstep-model") is not None and not named


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if _model_alone(config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    model = session.config.getoption("--lockstep-model")
    if model is not None:
        checks = ModelChecks.from_parent(session, name=f"lockstep[{model}]")
        items[:0] = checks.collect()


class ModelChecks(pytest.Collector):
    """The checks of one model; the run behind them is made once, when the first check asks."""

    def collect(self) -> list[pytest.Item]:
        return [
            check.from_parent(self, name=name)
            for name, check in (
                ("words", WordsCheck),
                ("logits", LogitsCheck),
                ("operations", OperationsCheck),
                ("cache", CacheCheck),
            )
        ]


class ModelCheck(pytest.Item):
    """Fails with the findings that concern it, one per line."""

    def runtest(self) -> None:
        problems = list(self.problems(_report(self.config)))
        if problems:
            raise DivergenceError("\n".join(problems))

    def problems(self, report: Report) -> Iterator[str]:
        raise NotImplementedError

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The findings alone: a traceback into the suite would say nothing about the model."""
        from engine.errors import LockstepError

        if isinstance(excinfo.value, DivergenceError | LockstepError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return Path(__file__), None, f"{self.parent.name if self.parent else ''}: {self.name}"


class DivergenceError(Exception):
    """The model does not do what the reference does."""


class WordsCheck(ModelCheck):
    def problems(self, report: Report) -> Iterator[str]:
        for text in report.texts:
            for found in text.findings:
                yield f"{found.stage} of {found.text!r}: {found.got!r}, not {found.expected!r}"
            if text.follows:
                yield f"{text.case}: the answer differs, as the operations that are blamed make it"
        for trial in report.trials:
            for d in trial.disagreements:
                if not d.is_tie:
                    yield (
                        f"{trial.candidate}: after position {d.position} it prefers {d.chosen}, the "
                        f"reference {d.expected}"
                    )


class LogitsCheck(ModelCheck):
    def problems(self, report: Report) -> Iterator[str]:
        for trial in report.trials:
            if trial.logits_outside:
                yield f"{trial.candidate}: logits are off by {trial.logits_error:.1e} of their scale"


class OperationsCheck(ModelCheck):
    def problems(self, report: Report) -> Iterator[str]:
        for trial in report.trials:
            yield from _culprits(trial, cache=False)


class CacheCheck(ModelCheck):
    def problems(self, report: Report) -> Iterator[str]:
        for trial in report.trials:
            yield from _culprits(trial, cache=True)


def _culprits(trial: Trial, *, cache: bool) -> Iterator[str]:
    for culprit in trial.culprits:
        if culprit.finding.probe.startswith("cache.") == cache:
            yield f"{trial.candidate}: {culprit}"
    for finding in () if trial.culprits else trial.propagated:
        if finding.probe.startswith("cache.") == cache:
            yield f"{trial.candidate}: {finding} in the free run"


def _report(config: pytest.Config) -> Report:
    if _REPORT not in config.stash:
        from conformance.check import run_check

        golden = config.getoption("--lockstep-golden")
        config.stash[_REPORT] = run_check(
            [config.getoption("--lockstep-model")],
            Path(golden) if golden else None,
            device=config.getoption("--lockstep-device"),
            dtype=config.getoption("--lockstep-dtype"),
        )
    return config.stash[_REPORT]
