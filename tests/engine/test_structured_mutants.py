"""Each known fault of structured output fails the check that is named for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings

from conformance.mutants.mutant import Mutant
from conformance.mutants.planting import plant, planted
from conformance.mutants.run import processes
from conformance.mutants.structured import STRUCTURED

THOROUGH = settings.default.max_examples > 1000
ONE_IN = 1 if THOROUGH else 3  # each has a process of its own, which takes seconds to start


@dataclass(frozen=True)
class Judged:
    """What a fault's own check said of it."""

    id: str
    wrong: str | None


def judged(mutant: Mutant) -> Judged:
    """The check that is named for a fault, in a process that imports the engine with it."""
    plant([mutant])
    import torch

    from tests.engine.structured_laws import LAWS

    torch.set_num_threads(1)
    try:
        LAWS[mutant.expected]()
    except Exception as error:
        return Judged(mutant.id, f"{type(error).__name__}: {error}")
    except BaseException as error:  # pytest's own failures are no exceptions
        return Judged(mutant.id, f"{type(error).__name__}: {error}")
    return Judged(mutant.id, None)


def hunted(mutants: Sequence[Mutant]) -> list[Judged]:
    with processes() as pool:
        return list(pool.map(judged, mutants))


def test_the_faults_are_planted_in_the_code_as_it_is() -> None:
    from tests.engine.structured_laws import LAWS

    assert len({mutant.id for mutant in STRUCTURED}) == len(STRUCTURED) >= 16
    for mutant in STRUCTURED:
        assert mutant.old != mutant.new
        assert mutant.expected in LAWS
        compile(planted(mutant), mutant.file, "exec")


@pytest.mark.timeout(1800)
def test_each_fault_fails_the_check_that_is_named_for_it() -> None:
    assert [fault.id for fault in hunted(STRUCTURED[::ONE_IN]) if fault.wrong is None] == []
