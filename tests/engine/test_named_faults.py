"""Each fault that shows in no golden and in no schedule fails the test that is named for it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from conformance.mutants.compiled import COMPILED
from conformance.mutants.inspect import INSPECT
from conformance.mutants.kernels import KERNELS
from conformance.mutants.mutant import Mutant
from conformance.mutants.planting import plant, planted
from conformance.mutants.quantised import QUANTISED
from conformance.mutants.run import processes
from conformance.mutants.server import SERVER
from conformance.mutants.serving import SERVING
from conformance.mutants.structured import STRUCTURED

THOROUGH = settings.default.max_examples > 1000
ONE_IN = 1 if THOROUGH else 8  # each has a process of its own, which takes seconds to start
FAULTS = (*SERVING, *STRUCTURED, *COMPILED, *KERNELS, *QUANTISED, *INSPECT, *SERVER)
HERE = Path(__file__).parent
QUIET = "-q -x --assert=plain -p no:xdist -p no:cacheprovider --timeout 120".split()


def judged(mutant: Mutant) -> tuple[str, int]:
    """What its test gives, as pytest's exit status, in a process that imports the engine with the fault."""
    plant([mutant])
    os.environ["HYPOTHESIS_PROFILE"] = "ci"  # repeatable, and nothing is remembered
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main([str(HERE / mutant.expected), *QUIET])
    return mutant.id, int(status)


def hunted(mutants: Sequence[Mutant]) -> list[tuple[str, int]]:
    with processes() as pool:
        return list(pool.map(judged, mutants))


def test_the_faults_are_planted_in_the_code_as_it_is() -> None:
    # These import the engine, which is planted first.
    from tests.engine.structured_laws import LAWS
    from tests.engine.test_compiled import GOLDENS

    assert min(len(SERVING), len(STRUCTURED)) >= 16
    assert min(len(COMPILED), len(QUANTISED)) >= 12
    assert len({mutant.id for mutant in FAULTS}) == len(FAULTS)
    for mutant in FAULTS:
        assert mutant.old != mutant.new
        compile(planted(mutant), mutant.file, "exec")
        file, _, test = mutant.expected.partition("::")
        test, _, law = test.partition("[")
        assert f"def {test}(" in (HERE / file).read_text(encoding="utf-8")
        assert law == "" or law.removesuffix("]") in {*LAWS, *GOLDENS}


@pytest.mark.timeout(1800)
def test_each_fault_fails_the_test_that_is_named_for_it() -> None:
    """By an assertion of its own: a test that cannot be collected or run has another status."""
    faults = FAULTS[::ONE_IN]
    assert hunted(faults) == [(fault.id, int(pytest.ExitCode.TESTS_FAILED)) for fault in faults]
