"""The check to run after every edit of the engine: `pytest -m lockstep tests -k llama`.

A test per tiny golden, in float32, in seconds; other dtypes and real models are in test_goldens.
"""

from __future__ import annotations

import pytest

from conformance.cases import CASES
from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS, Golden
from tests.engine.tiny import one_thread  # noqa: F401  (applies to every test here)


@pytest.mark.lockstep
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_engine_conforms_to_a_tiny_golden(name: str, pytestconfig: pytest.Config) -> None:
    device = pytestconfig.getoption("--lockstep-device")
    report = run_check(golden=REPOSITORY_GOLDENS / name, device=device)
    assert report.conforms, "\n".join(str(t) for t in report.trials)
    golden = Golden(REPOSITORY_GOLDENS / name)
    whole, chunked = report.trials
    assert whole.schedule == tuple(golden.schedule)
    assert chunked.schedule == tuple(golden.schedule_in(5))
    assert whole.probes == len(golden.manifest["probes"]) + 1
    assert all(0 < share <= 1 for t in report.trials for _, share in t.worst.values())
    assert not any(t.disagreements for t in report.trials)
