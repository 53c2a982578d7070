"""The choice of experts: compared as sets, handed on in every run, and judged by the golden's margins.

Its goldens are made on the spot by the reference, as `test_oracle` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from conformance.candidate import Level
from conformance.cases import Case
from conformance.experts import choice_errors, is_expert_choice, router_of
from conformance.generation import answer
from conformance.golden import Golden
from conformance.lockstep import nowhere, walk
from conformance.oracle.capture import capture_quick, refuse_near_ties
from conformance.oracle.model import Oracle, load
from conformance.verdict import trial
from engine.errors import LockstepError
from tests.conformance.replay import Replay, at, judged
from tests.conformance.tiny_families import CONFIGS

IDS = "layers.1.mlp.expert_ids"
SPARSE = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")
Make = Callable[[str], Golden]


@pytest.fixture(scope="module")
def golden_of(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Golden] = {}

    def make(family: str) -> Golden:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            config = CONFIGS[family] | {"bos_token_id": None, "eos_token_id": None}
            case = Case(family, family, config, seed=4, decode_tokens=2)
            made[family] = capture_quick(case, folder, None)
        return Golden(made[family].folder)

    return make


@pytest.fixture
def mixtral(golden_of: Make) -> Golden:
    return golden_of("mixtral")


def test_the_same_experts_are_no_error_and_others_are_one_of_their_tokens_margin() -> None:
    expected = torch.tensor([[0, 2], [1, 3], [0, 1]])
    chosen = torch.tensor([[[0, 2], [1, 2], [0, 1]], [[0, 1], [1, 3], [0, 3]]])
    errors = choice_errors(chosen, expected, torch.tensor([0.5, 0.25, 0.125]), 4)
    assert errors.largest.tolist() == [[0, 0.25, 0], [0.5, 0, 0.125]]
    assert not errors.rms.any() and not errors.along.any()


@pytest.mark.parametrize("ids", [[1, 1], [-1, 2], [2, 4]])
def test_experts_that_no_router_can_choose_are_beyond_every_margin(ids: list[int]) -> None:
    errors = choice_errors(torch.tensor([[ids]]), torch.tensor([[0, 2]]), torch.zeros(1), 4)
    assert errors.largest.tolist() == [[math.inf]]


def other_experts(golden: Golden, position: int) -> Callable[[str, Tensor], Tensor]:
    """Another set at a position of the prompt."""

    def alter(_: str, value: Tensor) -> Tensor:
        if value.shape[1] > position:
            here = value[0, position].tolist()
            spare = next(e for e in range(6) if e not in here)
            value[0, position] = torch.tensor(sorted([spare, *here[1:]]))
        return value

    return at(IDS, alter)


def test_other_experts_beyond_the_margin_are_a_culprit_that_says_how_far(mixtral: Golden) -> None:
    result = judged(mixtral, other_experts(mixtral, 5))
    (culprit,) = result.culprits
    found = culprit.finding
    assert (found.probe, found.position, found.head, found.step) == (IDS, 5, None, 0)
    assert found.error == mixtral.manifest["expert_margins"][IDS][5]
    assert found.allowance == mixtral.envelope("lockstep", torch.float32).allowance(router_of(IDS))
    assert culprit.graft_confirms
    assert not result.disagreements and not result.conforms


def test_other_experts_within_the_routers_noise_are_a_tie(mixtral: Golden) -> None:
    mixtral.manifest["expert_margins"][IDS][5] = 1e-9
    result = judged(mixtral, other_experts(mixtral, 5))
    (tie,) = result.disagreements
    assert result.conforms and tie.is_tie
    assert (tie.probe, tie.position, tie.margin) == (IDS, 5, 1e-9)
    assert tie.expected == tuple(mixtral.trace[IDS][5].tolist()) != tie.chosen
    assert f"tie  {IDS}: at position 5 it prefers experts {tie.chosen}" in str(result)


def test_the_order_in_which_experts_are_listed_says_nothing(mixtral: Golden) -> None:
    assert judged(mixtral, at(IDS, lambda _, value: value.flip(-1).int())).conforms


def test_ids_that_are_no_whole_numbers_are_a_problem_and_not_an_error(mixtral: Golden) -> None:
    result = judged(mixtral, at(IDS, lambda _, value: value.float()))
    (culprit,) = result.culprits
    assert culprit.finding.problem == "is torch.float32, ids are whole numbers"


def test_a_free_run_goes_on_with_the_goldens_experts_and_nothing_else(mixtral: Golden) -> None:
    returned: dict[str, Tensor] = {}

    class Watching(Replay):
        def step(self, ids: Tensor, tap: Callable[[str, Tensor], Tensor]) -> None:
            def watching(probe: str, value: Tensor) -> Tensor:
                handed = tap(probe, value)
                if handed is not value:
                    returned.setdefault(probe, handed)
                return handed

            super().step(ids, watching)

    walk(Watching(mixtral, other_experts(mixtral, 5)), mixtral, torch.float32, nowhere)
    assert list(returned) == [p for p in mixtral.manifest["probes"] if is_expert_choice(p)]
    assert torch.equal(returned[IDS][0], mixtral.truth(IDS, 0, mixtral.schedule[0]))


@pytest.mark.parametrize(("margin", "findings"), [(1e-9, 0), (1.0, 1)])
def test_an_answer_that_differs_behind_tied_experts_is_excused(
    mixtral: Golden, margin: float, findings: int
) -> None:
    class Other(Replay):
        """Answers otherwise than the reference."""

        def greedy(self, ids: list[int], max_tokens: int) -> list[int]:
            return [token + 1 for token in mixtral.ids[-max_tokens:].tolist()]

    mixtral.manifest["margins"] = [1.0] * len(mixtral.ids)
    for margins in mixtral.manifest["expert_margins"].values():
        margins[:] = [margin] * len(margins)
    envelope = mixtral.envelope("free", torch.float32)
    said = answer(Other(mixtral), mixtral, envelope, Level.L5)
    assert len(said.findings) == findings


@pytest.mark.parametrize(
    ("margin", "position", "level", "conforms"),
    [
        (1e-9, 5, Level.L3, True),
        (1e-9, 5, Level.L2, True),
        (1e-9, 5, Level.L5, False),  # its own experts were shown, and were the reference's
        (1e-9, 6, Level.L3, False),
        (1.0, 5, Level.L3, False),
    ],
)
def test_logits_behind_tied_experts_that_are_not_shown_are_not_judged(
    mixtral: Golden, margin: float, position: int, level: Level, conforms: bool
) -> None:
    for margins in mixtral.manifest["expert_margins"].values():
        margins[:] = [1.0] * len(margins)
    mixtral.manifest["expert_margins"][IDS][5] = margin

    def alter(_: str, value: Tensor) -> Tensor:
        if value.shape[1] > position:
            value[0, position] = value[0, position].flip(-1)
        return value

    candidate = Replay(mixtral, at("logits", alter))
    result = trial(candidate, mixtral, torch.float32, mixtral.schedule, level)
    assert result.conforms is conforms
    assert result.unjudged == ((5,) if margin < 1 and level < Level.L5 else ())


@pytest.mark.parametrize(("position", "conforms"), [(5, True), (6, False)])
def test_nothing_is_judged_by_a_token_whose_tied_experts_are_not_shown(
    mixtral: Golden, position: int, conforms: bool
) -> None:
    """What the experts give is shown, and which they were is not. Findings show their own token's numbers."""
    for margins in mixtral.manifest["expert_margins"].values():
        margins[:] = [1.0] * len(margins)
    mixtral.manifest["expert_margins"][IDS][5] = 1e-9
    out = IDS.replace("expert_ids", "out")

    def alter(_: str, value: Tensor) -> Tensor:
        if value.shape[1] > 6:
            value[0, 5] += 10.0
            value[0, position] += 1.0
        return value

    candidate = Replay(mixtral, at(out, alter))
    candidate.lacks = ("*.expert_ids",)
    result = trial(candidate, mixtral, torch.float32, mixtral.schedule, Level.L4)
    assert result.conforms is conforms and result.unjudged == (5,)
    assert [(c.finding.probe, c.finding.position, c.finding.worst) for c in result.culprits] == (
        [] if conforms else [(out, 6, ())]
    )


@pytest.mark.parametrize("family", SPARSE)
def test_no_smaller_change_of_the_logits_than_the_margin_changes_the_choice(
    golden_of: Make, family: str
) -> None:
    """The worst one does: what is chosen falls and the rest rises. In float64, so that nothing else can."""
    golden = golden_of(family)
    golden.load()
    total = len(golden.ids)
    model = load(golden.folder, torch.float64)

    def differing(share: float) -> int:
        """In how many tokens other experts are chosen after logits moved by that share of the margin."""
        found = 0

        def tap(probe: str, value: Tensor) -> Tensor:
            nonlocal found
            if probe not in golden:
                return value
            truth = golden.truth(probe, 0, total)
            ids = probe.replace("router_logits", "expert_ids")
            if probe.endswith("router_logits"):
                chosen = torch.zeros_like(truth, dtype=torch.bool)
                chosen.scatter_(-1, golden.truth(ids, 0, total), True)
                scale = golden.scale(probe, 0, total)
                size = truth.abs().amax(-1) if scale is None else scale
                size = size * golden.expert_margins(ids, 0, total) * share
                truth = truth + torch.where(chosen, -1.0, 1.0) * size[:, None]
            if is_expert_choice(probe):
                found += int((value[0] != truth).any(-1).sum())
            return truth.expand_as(value)

        oracle = Oracle(model)
        oracle.begin(total)
        oracle.step(golden.ids, tap)
        return found

    choices = total * sum(map(is_expert_choice, golden.manifest["probes"]))
    assert differing(0.99) == 0
    if family == "deepseek_v3":  # its margins are bounds: a sigmoid is flatter than at its steepest
        assert differing(50.0) > 0
    else:
        assert differing(1.01) == choices


@pytest.mark.parametrize("family", SPARSE)
def test_the_reference_conforms_to_its_own_choices(golden_of: Make, family: str) -> None:
    golden = golden_of(family)
    assert judged(golden, lambda _, value: value).conforms
    stored = {p: t.dtype for p, t in golden.trace.items() if is_expert_choice(p)}
    assert set(stored.values()) == {torch.int64}
    assert set(golden.manifest["expert_margins"]) == set(stored)


@pytest.mark.parametrize("probe", ["logits", IDS])
def test_a_golden_whose_choice_is_a_near_tie_is_refused_by_the_probes_name(
    mixtral: Golden, probe: str
) -> None:
    for margins in (mixtral.manifest["margins"], *mixtral.manifest["expert_margins"].values()):
        margins[:] = [1.0] * len(margins)
    refuse = partial(refuse_near_ties, mixtral)
    refuse()
    found = mixtral.manifest["expert_margins"].get(probe, mixtral.manifest["margins"])
    found[3] = 1e-7
    with pytest.raises(LockstepError, match=f"unstable golden: its closest choice at {probe} has"):
        refuse()
