"""The suite's own strength: every planted fault is caught, blamed on the right operation, and nothing else is."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from conformance.mutants import judge_together, run_mutants
from conformance.mutants.mutant import Mutant
from conformance.mutants.planting import planted
from conformance.mutants.run import CASES, CATALOGUE, THEMES, MutantReport, Outcome, theme_of
from conformance.mutants.weaker import CLOSE, COSINE, TEXT, TOP_5, WEAKER, notices
from engine.errors import LockstepError, RequestError

BY_ID = {mutant.id: mutant for mutant in CATALOGUE}
THOROUGH = settings.default.max_examples > 1000
#: Of which one fault is judged: all of them each night, and by `lockstep mutants`. What every decoder has
#: is llama's; there are many of a kind of the others.
ONE_IN = dict.fromkeys(CASES, 1 if THOROUGH else 8) | {"llama": 1 if THOROUGH else 4}
#: Minutes of a real model; tests/test_answers.py plants the same faults in its spec each time.
REAL = "gemma3-270m"
README = Path(__file__).parents[2] / "README.md"


def readme_table() -> dict[str, list[int]]:
    """The rows of the README's table: faults of a family, caught by this suite, by each weaker check."""
    section = README.read_text(encoding="utf-8").split("## What weaker checks miss")[1]
    rows = re.findall(
        r"^\| `?([\w-]+)`?[^|]*\|((?: *\d+ *\|)+)$", section.split("\n## ")[0], re.MULTILINE
    )
    return {name: [int(n) for n in numbers.split("|") if n.strip()] for name, numbers in rows}


def test_every_mutant_applies_to_the_code_as_it_is_and_changes_it() -> None:
    assert len(CATALOGUE) >= 125
    for mutant in CATALOGUE:
        assert mutant.old != mutant.new
        compile(planted(mutant), mutant.file, "exec")


def test_mutants_have_names_of_their_own_and_say_where_they_come_from() -> None:
    assert max(Counter(m.id for m in CATALOGUE).values()) == 1
    assert max(Counter((m.family, m.file, m.old, m.new) for m in CATALOGUE).values()) == 1
    assert {m.family for m in CATALOGUE} == set(CASES)
    assert all(m.fault and m.source and m.expected for m in CATALOGUE)
    assert {theme_of(m) for m in CATALOGUE} == set(THEMES)


def test_a_fault_that_no_longer_applies_is_an_error_not_a_pass() -> None:
    stale = dataclasses.replace(CATALOGUE[0], old="a line that nobody wrote")
    with pytest.raises(LockstepError, match="no longer applies: its text stands 0 times"):
        planted(stale)


def test_two_faults_of_one_line_are_refused_not_planted_as_one() -> None:
    """The second would silently be missing, and its survival would look like blindness."""
    with pytest.raises(LockstepError, match="no longer applies"):
        planted(BY_ID["activation-sigmoid"], BY_ID["gate-up-swapped"])


def test_a_mutant_that_cannot_be_judged_is_neither_killed_nor_missed() -> None:
    broken = Outcome(CATALOGUE[0], False, (), "-", frozenset(), 0.0, error="RuntimeError: no")
    report = MutantReport([broken])
    assert not broken.blamed_right
    assert report.exit_status == 2


def test_a_survivor_stays_in_the_denominator_and_is_listed() -> None:
    survivor = Outcome(CATALOGUE[0], False, (), "-", frozenset({TEXT}), 0.0)
    report = MutantReport([survivor])
    document = report.to_json()
    assert report.exit_status == 1
    assert document["survivors"] == [CATALOGUE[0].id]
    assert len(document["mutants"]) == 1
    assert document["weaker_checks"] == {TEXT: 1, TOP_5: 0, COSINE: 0, CLOSE: 0}


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(RequestError, match="no mutants of the family 'gpt5'; there are llama"):
        run_mutants("gpt5", print)


def test_weaker_checks_hold_nothing_against_the_engine_as_it_is() -> None:
    """Whoever rejects the innocent has noticed nothing."""
    assert notices("llama-gqa", "float32") == set()
    assert notices("text-pieces", "float32") == set()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", [f for f in CASES if THOROUGH or f != REAL])
def test_every_mutant_is_killed_and_blamed_on_the_expected_operation(
    family: str, asset: object
) -> None:
    if family in ("gguf", REAL):
        asset("smollm2-135m" if family == "gguf" else REAL)  # type: ignore[operator]
    one_in = ONE_IN[family]
    report = run_mutants(family, lambda _: None, one_in)
    assert [o.error for o in report.outcomes if o.error] == []
    assert [o.mutant.id for o in report.outcomes if not o.killed] == []
    wrong = {o.mutant.id: o.blamed for o in report.outcomes if not o.blamed_right}
    assert wrong == {}
    assert report.false_alarms == []
    document = report.to_json()
    of_family = sum(m.family == family for m in CATALOGUE)
    assert len(document["mutants"]) == math.ceil(of_family / one_in)
    counts = [document["weaker_checks"][name] for name in WEAKER]
    # What weaker checks notice near their limits may differ by a fault on another processor.
    assert readme_table()[family][:2] == [of_family, of_family]
    if family == "llama":  # few faults are noticed by all
        assert min(counts) < len(report.outcomes)  # the reason for all of this


def test_the_readme_counts_the_catalogue_as_it_is() -> None:
    table = readme_table()
    total = table.pop("all")
    assert {family: row[0] for family, row in table.items()} == Counter(m.family for m in CATALOGUE)
    assert total == [sum(column) for column in zip(*table.values(), strict=True)]


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("embedding-rows-shifted", "head-tied-always"),
        ("norm-eps", "activation-gelu"),
        ("cache-values-are-keys", "kv-heads-tiled"),
    ],
)
def test_two_faults_at_once_are_both_convicted_each_at_its_own_place(early: str, late: str) -> None:
    """Whoever stops at the first difference, or compares what has run on, finds one of them."""
    pair: tuple[Mutant, Mutant] = BY_ID[early], BY_ID[late]
    document = judge_together(pair)
    places: dict[str, set[tuple[str, int]]] = {}
    for culprit in document["culprits"]:
        if culprit["file"] is not None:  # the engine's own loop follows from both
            name = re.sub(r"(^|cache\.)layers\.\d+\.", r"\1", culprit["probe"])
            places.setdefault(name, set()).add((culprit["file"], culprit["line"]))
            assert culprit["graft_confirms"], culprit
    assert set(places) == {name for mutant in pair for name in mutant.expected.split()}
    first, second = (
        {place for name in mutant.expected.split() for place in places[name]} for mutant in pair
    )
    assert first.isdisjoint(second)
