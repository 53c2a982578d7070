"""The invariance matrix: its cells cover what can meet, conform, and turn red where a fault is theirs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest
import torch
from rich.console import Console

from conformance.envelope import Envelope, Noise
from conformance.invariance.axes import AXES, COSTLY, RULES, Cell, of_models, reason_against
from conformance.invariance.controls import CONTROLS, judged
from conformance.invariance.covering import covering, possible_pairs
from conformance.invariance.naive import Naive, Reference
from conformance.invariance.page import write_html
from conformance.invariance.play import Dictated, Played
from conformance.invariance.run import Matrix, outcomes
from conformance.invariance.scripts import Script
from conformance.invariance.terminal import print_matrix
from conformance.invariance.verdict import Outcome, Verdict, judge
from conformance.mutants.planting import planted
from engine.command import json_text
from engine.errors import RequestError
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

#: Of two models that have the most between them: windows, and a latent with experts.
MODELS = ("mistral-window", "deepseek-v3")


@pytest.fixture(scope="module")
def cells() -> Sequence[Cell]:
    return covering(200)


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    """Of two models every other cell that takes no seconds; `lockstep invariance` plays all."""
    all_cells = covering(axes=of_models(MODELS))
    cheap = [cell for cell in all_cells if not any(cell[axis] == value for axis, value in COSTLY)]
    some = cheap[::2]
    return Matrix(outcomes(some), seconds=1.0)


# -- the cells ---------------------------------------------------------------------------------------


def test_two_hundred_cells_have_every_possible_pair(cells: Sequence[Cell]) -> None:
    assert len(set(cells)) == len(cells) >= 200
    met = {pair for cell in cells for pair in cell.pairs}
    assert met == set(possible_pairs())


def test_pairs_that_are_not_possible_have_a_reason() -> None:
    """One says so itself, or what one of the two is bound to does."""
    possible = set(possible_pairs())
    bound = {("padding", "left"), ("padding", "right"), ("packing", "padded batch")}
    bound.add(("batch", "alone"))
    for a, b in combinations(AXES, 2):
        for pair in product(((a, x) for x in AXES[a]), ((b, y) for y in AXES[b])):
            assert pair in possible or reason_against(pair) or bound & set(pair), pair


def test_no_cell_breaks_a_rule_and_every_rule_forbids_something(cells: Sequence[Cell]) -> None:
    pairs = {pair for cell in cells for pair in cell.pairs}
    assert not any(rule.forbids(pair) for rule in RULES for pair in pairs)
    every = [((a, x), (b, y)) for a in AXES for x in AXES[a] for b in AXES for y in AXES[b]]
    assert all(any(rule.forbids(pair) for pair in every) for rule in RULES)


def test_the_same_cells_are_picked_every_time(cells: Sequence[Cell]) -> None:
    once = covering()
    assert once == cells[: len(once)]


def test_a_model_that_is_not_in_the_matrix_is_refused() -> None:
    with pytest.raises(RequestError, match="no model 'llama-9'"):
        of_models(["llama-9"])


# -- what is played ----------------------------------------------------------------------------------


def test_no_cell_has_a_bug(matrix: Matrix) -> None:
    assert not [f"{outcome.cell}: {outcome.said}" for outcome in matrix.bugs]
    assert matrix.exit_status == 0


def test_batch_invariant_cells_are_bitwise_and_others_are_not_all(matrix: Matrix) -> None:
    modes = {row.value: row for row in matrix.rows if row.axis == "mode"}
    invariant, ordinary = modes["batch_invariant"], modes["ordinary"]
    assert invariant.count(Verdict.BITWISE) == len(invariant.outcomes) > 0
    assert ordinary.count(Verdict.WITHIN) > 0, "rounding differs somewhere, or nothing was varied"


def test_every_value_was_exercised(matrix: Matrix) -> None:
    untried = {
        (row.axis, row.value)
        for row in matrix.rows
        if not row.outcomes and row.axis != "model" and (row.axis, row.value) not in COSTLY
    }
    assert not untried
    assert all(outcome.rows > 20 for outcome in matrix.outcomes)


# -- faults ------------------------------------------------------------------------------------------


def test_each_axis_has_a_control_that_still_applies() -> None:
    assert {control.axis for control in CONTROLS} == set(AXES)
    for control in CONTROLS:
        planted(control.fault)


@pytest.fixture(scope="module")
def controlled() -> Mapping[str, Sequence[Outcome]]:
    """The first red and the first green cell of each control; the nightly run has all."""
    return judged([replace(c, red=c.red[:1], green=c.green[:1]) for c in CONTROLS])


@pytest.mark.parametrize("name", [control.fault.id for control in CONTROLS])
def test_a_planted_fault_turns_its_own_cells_red_and_no_others(
    name: str, controlled: Mapping[str, Sequence[Outcome]]
) -> None:
    red, green = controlled[name]
    assert red.verdict == Verdict.BUG, red
    assert green.verdict != Verdict.BUG, green


# -- the verdict -------------------------------------------------------------------------------------

SCRIPT = Script((3, 1), prompt=1)
NAIVE = object.__new__(Naive)
NAIVE.envelope = Envelope("free", 0.0, {"logits": Noise(0.01, 0.01, 0.01, rows=1)})
PROBE = "layers.0.mlp.expert_ids"


def verdict_of(
    logits: list[float], *, experts: list[int] | None = None, near: bool = False, **cell: str
) -> Verdict:
    """Of a request that was shown these, where [1, 0.99, 0] was expected and 3 % may be off."""
    NAIVE.references = {
        SCRIPT: Reference(
            torch.tensor([[1.0, 0.99, 0.0]] * 2),
            {PROBE: torch.tensor([[0, 1]] * 2)},
            {PROBE: torch.tensor([near] * 2)},
        )
    }
    request = Dictated(SCRIPT, watched=False)
    request.rows = [(0, torch.tensor(logits))]
    if experts:
        request.experts = [(0, PROBE, torch.tensor(experts))]
    return judge(Cell.of(**cell), Played([request]), NAIVE).verdict


def test_verdicts_from_bits_to_bugs() -> None:
    assert verdict_of([1.0, 0.99, 0.0]) == Verdict.BITWISE
    assert verdict_of([1.0, 0.98, 0.0]) == Verdict.WITHIN
    assert verdict_of([0.985, 0.99, 0.0]) == Verdict.TIE
    assert verdict_of([1.0, 0.9, 0.0]) == Verdict.BUG
    assert verdict_of([1.0, float("nan"), 0.0]) == Verdict.BUG
    assert verdict_of([1.0, 0.98, 0.0], mode="batch_invariant") == Verdict.BUG


def test_other_experts_are_a_tie_where_the_last_bits_decide_and_a_bug_elsewhere() -> None:
    assert verdict_of([9.0, 9.0, 9.0], experts=[0, 2], near=True) == Verdict.TIE
    assert verdict_of([9.0, 9.0, 9.0], experts=[0, 2]) == Verdict.BUG
    assert verdict_of([9.0, 9.0, 9.0], experts=[0, 1], near=True) == Verdict.BUG


def test_what_was_not_exercised_is_no_success() -> None:
    request = Dictated(SCRIPT, watched=False)
    request.rows = [(0, torch.tensor([1.0, 0.99, 0.0]))]
    verdict_of([1.0, 0.99, 0.0])
    played = Played([request], unexercised="0 requests were pre-empted")
    assert judge(Cell.of(), played, NAIVE).verdict == Verdict.BUG


# -- the reports -------------------------------------------------------------------------------------


def test_the_reports_have_every_value_and_every_bug(matrix: Matrix, tmp_path: Path) -> None:
    broken = replace(matrix.outcomes[0], verdict=Verdict.BUG, worst=torch.inf, said="<outside>")
    matrix = Matrix([broken, *matrix.outcomes[1:]], seconds=1.0)
    document = json.loads(json_text(matrix.to_json()))
    assert document["verdict"] == "diverges" and matrix.exit_status == 1
    assert len(document["cells"]) == len(matrix.outcomes)
    assert len(document["axes"]) == sum(map(len, AXES.values()))
    console = Console(file=io.StringIO(), width=120)
    print_matrix(matrix, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{broken.cell}: <outside>" in " ".join(said.split())
    write_html(matrix, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;outside&gt;" in page and "<outside>" not in page
    assert "http:" not in page and "https:" not in page and "<script" not in page
    for values in AXES.values():
        assert all(value in page for value in values)
