"""Random schedules on a paged cache change nothing, and each of the faults that are known would show."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.mutants.planting import planted
from conformance.mutants.schedules import SCHEDULES
from conformance.mutants.speculation import SPECULATION
from tests.engine.hunt import hunt
from tests.engine.machine import Serving

THOROUGH = settings.default.max_examples > 1000
STEPS = 20_000 if THOROUGH else 1_000
ONE_IN = 1 if THOROUGH else 12  # a hunt takes some seconds
MOST_OPERATIONS = 8
FAULTS = (*SCHEDULES, *SPECULATION)


@pytest.mark.timeout(1800)
def test_however_requests_come_and_go_their_logits_are_those_of_the_naive_run() -> None:
    """Each of the things that a cache and a scheduler do of their own accord has been there, and often."""
    Serving.exercised = Counter()
    run_state_machine_as_test(
        Serving, settings=settings(max_examples=STEPS // 25, stateful_step_count=40)
    )
    did = Serving.exercised
    assert did["submit"] + did["cancel"] + did["step"] >= STEPS
    moves = ("token", "shared pass", "fork", "hit", "eviction", "pre-emption", "turn")
    for what in (*moves, "right draft", "wrong draft"):
        assert did[what] >= STEPS // 250, f"{what}: {did[what]} times"


def test_the_faults_are_planted_in_the_code_as_it_is() -> None:
    assert min(len(SCHEDULES), len(SPECULATION)) >= 12
    assert len({mutant.id for mutant in FAULTS}) == len(FAULTS)
    for mutant in FAULTS:
        assert mutant.old != mutant.new
        compile(planted(mutant), mutant.file, "exec")


@pytest.mark.timeout(1800)
def test_each_fault_is_found_and_shown_in_a_few_operations() -> None:
    """Not counted are the steps after the last of them, until everyone is served."""
    hunted = list(hunt(FAULTS[::ONE_IN]))
    assert [h.id for h in hunted if h.wrong is None] == []
    long = {h.id: h.operations for h in hunted if len(h.operations) > MOST_OPERATIONS}
    assert long == {}
