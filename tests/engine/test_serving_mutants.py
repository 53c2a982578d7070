"""Each known fault of sharing an engine and of what is said of answers fails the test that is named for it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from conformance.mutants.mutant import Mutant
from conformance.mutants.planting import plant, planted
from conformance.mutants.run import processes
from conformance.mutants.serving import SERVING

THOROUGH = settings.default.max_examples > 1000
ONE_IN = 1 if THOROUGH else 6  # each has a process of its own, which takes seconds to start
HERE = Path(__file__).parent


def judged(mutant: Mutant | None, test: str) -> tuple[str, int]:
    """What a test gives, as pytest's exit status, in a process that imports the engine with the fault."""
    if mutant is not None:
        plant([mutant])
    os.environ["HYPOTHESIS_PROFILE"] = "ci"  # repeatable, and nothing is remembered
    quiet = [
        "-q",
        "-x",
        "--assert=plain",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "120",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main([str(HERE / test), *quiet])
    return (mutant.id if mutant else "no fault"), int(status)


def hunted(mutants: Sequence[Mutant]) -> list[tuple[str, int]]:
    with processes() as pool:
        return list(pool.map(judged, mutants, [mutant.expected for mutant in mutants]))


def test_the_faults_are_planted_in_the_code_as_it_is() -> None:
    assert len({mutant.id for mutant in SERVING}) == len(SERVING) >= 16
    for mutant in SERVING:
        assert mutant.old != mutant.new
        compile(planted(mutant), mutant.file, "exec")
        file, _, test = mutant.expected.partition("::")
        assert f"def {test}(" in (HERE / file).read_text(encoding="utf-8")


@pytest.mark.timeout(1800)
def test_each_fault_fails_the_test_that_is_named_for_it() -> None:
    """By an assertion of its own: a test that cannot be collected or run has another status."""
    faults = SERVING[::ONE_IN]
    assert hunted(faults) == [(fault.id, int(pytest.ExitCode.TESTS_FAILED)) for fault in faults]
