"""The suite's own strength: every planted fault is caught, blamed on the right operation, and nothing else is."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from conformance.mutants import run_mutants
from conformance.mutants.run import CASES, CATALOGUE, Outcome, planted
from engine.errors import LockstepError, RequestError


def test_every_mutant_applies_to_the_code_as_it_is_and_changes_it() -> None:
    assert len(CATALOGUE) >= 30
    for mutant in CATALOGUE:
        assert mutant.old != mutant.new
        compile(planted(mutant), mutant.file, "exec")


def test_mutants_have_names_of_their_own_and_say_where_they_come_from() -> None:
    assert max(Counter(m.id for m in CATALOGUE).values()) == 1
    assert {m.family for m in CATALOGUE} == set(CASES)
    assert all(m.fault and m.source and m.expected for m in CATALOGUE)


def test_a_fault_that_no_longer_applies_is_an_error_not_a_pass() -> None:
    stale = dataclasses.replace(CATALOGUE[0], old="a line that nobody wrote")
    with pytest.raises(LockstepError, match="no longer applies: its text stands 0 times"):
        planted(stale)


def test_a_mutant_that_cannot_be_judged_is_neither_killed_nor_missed() -> None:
    broken = Outcome(CATALOGUE[0], False, (), "-", (), 0.0, error="RuntimeError: no")
    assert not broken.blamed_right


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(RequestError, match="no mutants of the family 'gpt5'; there are llama"):
        run_mutants("gpt5", print)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", CASES)
def test_every_mutant_is_killed_and_blamed_on_the_expected_operation(
    family: str, asset: object
) -> None:
    if family == "gguf":
        asset("smollm2-135m")  # type: ignore[operator]
    report = run_mutants(family, lambda _: None)
    assert [o.error for o in report.outcomes if o.error] == []
    assert [o.mutant.id for o in report.outcomes if not o.killed] == []
    wrong = {o.mutant.id: o.blamed for o in report.outcomes if not o.blamed_right}
    assert wrong == {}
    assert report.false_alarms == []
    document = report.to_json()
    assert len(document["mutants"]) == sum(m.family == family for m in CATALOGUE)
    if family == "llama":
        # The reason for all of this: cheaper checks let faults through.
        assert min(document["weaker_checks"].values()) < len(report.outcomes)
