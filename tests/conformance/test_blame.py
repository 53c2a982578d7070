"""Who is blamed, for what, and on whose proof: what follows a culprit, grafts, standings, gaps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.candidate import Level, Tap
from conformance.engine_candidate import EngineCandidate
from conformance.golden import Golden
from conformance.tapped import Tapped
from conformance.verdict import behind_gaps, trial
from engine import Engine
from tests.conformance.replay import Replay, at, judged

TARGET = "layers.1.mlp.up"


def spoilt(golden: Golden, *probes: str) -> Tapped:
    """The engine with some operations 1 % too large; what follows takes that up, as in production."""
    engine = EngineCandidate(Engine.load(golden.folder), "eager")
    return Tapped(engine, lambda probe, value: value * 1.01 if probe in probes else value)


def test_what_follows_names_the_culprit_it_came_from(golden: Golden) -> None:
    result = trial(spoilt(golden, TARGET), golden, torch.float32)
    assert [c.finding.probe for c in result.culprits] == [TARGET]
    assert len(result.propagated) > 10
    assert {f.propagated_from for f in result.propagated} == {(TARGET,)}
    in_the_prompt = [golden.order(f.probe) for f in result.propagated if f.step == 0]
    assert min(in_the_prompt) > golden.order(TARGET)


def test_of_two_culprits_the_nearest_upstream_is_named_first(golden: Golden) -> None:
    early, late = "layers.0.attn.out", "layers.2.mlp.act"
    result = trial(spoilt(golden, early, late), golden, torch.float32)
    assert {c.finding.probe for c in result.culprits} == {early, late}
    assert all(c.graft_confirms for c in result.culprits)
    by_probe = {f.probe: f.propagated_from for f in result.propagated}
    assert by_probe["layers.1.out"] == (early,)
    assert by_probe["logits"] == (late, early)


def test_a_graft_confirms_only_culprits_behind_which_all_comes_right(golden: Golden) -> None:
    """A fault that hides from the lockstep run, such as one that passes its probe, is not proved away."""
    first, second = "layers.0.mlp.up", "layers.2.mlp.up"
    hidden = {"layers.2.mlp.down"}

    class Sly(Replay):
        """Goes on wrongly behind `second` in a free run, where the lockstep run cannot see it."""

        def step(self, ids: Tensor, tap: Tap) -> None:
            handed: dict[str, bool] = {}

            def sly(probe: str, value: Tensor) -> Tensor:
                returned = tap(probe, value)
                handed[probe] = returned is not value
                return returned

            def spoilt(probe: str, value: Tensor) -> Tensor:
                freely = not handed.get("embed", False)
                return sly(probe, value * 1.5 if probe in hidden and freely else value)

            super().step(ids, spoilt)

    candidate = Sly(golden, lambda p, v: v * 1.01 if p in (first, second) else v)
    result = trial(candidate, golden, torch.float32)
    assert {c.finding.probe: c.graft_confirms for c in result.culprits} == {
        first: True,
        second: False,
    }


def test_standings_say_where_every_probe_stands_by_head_and_position(golden: Golden) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        value[0, 1, 4] *= 1.01
        return value

    probe = "cache.layers.1.v"
    result = judged(golden, at(probe, alter))
    standing = next(s for s in result.own if s.probe == probe)
    assert standing.shares.shape == (2, len(golden.ids))
    assert (standing.shares > 1).nonzero().tolist() == [[1, 4]]
    assert standing.worst > 1
    assert {s.probe for s in result.own} == set(golden.manifest["probes"])
    assert result.worst["lockstep"][0] == probe


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (-torch.inf, None),
        (float(torch.finfo(torch.float16).min), None),
        (-5.0, "lets a masked place into the softmax"),
        (torch.nan, "lets a masked place into the softmax"),
    ],
)
def test_any_mask_that_leaves_nothing_is_legal_and_no_other(
    golden: Golden, mask: float, problem: str | None
) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        return value.masked_fill(value == -torch.inf, mask)

    result = judged(golden, at("layers.0.attn.scores", alter))
    assert [c.finding.problem for c in result.culprits] == ([problem] if problem else [])


def test_a_candidate_that_knows_the_best_few_is_judged_by_those(golden: Golden) -> None:
    class Few(Replay):
        partial = True

    def best(probe: str, value: Tensor) -> Tensor:
        kept = value.topk(5).indices
        return torch.full_like(value, torch.nan).scatter(-1, kept, value.gather(-1, kept) * factor)

    factor = 1.0
    candidate = Few(golden, at("logprobs", best), Level.L2)
    assert trial(candidate, golden, torch.float32).conforms
    factor = 1.01
    assert "logprobs" in {f.probe for f in trial(candidate, golden, torch.float32).propagated}


class Gappy(Replay):
    """A candidate that fuses what lies between some probes."""

    lacks = ("*.mlp.gate", "*.mlp.up", "*.attn.v")


def test_behind_a_gap_a_probe_is_judged_as_a_run_and_not_as_one_operation(golden: Golden) -> None:
    """Rounding of several operations in a row is no fault of the last one."""
    gaps = behind_gaps(golden.probes(Level.L5), Gappy(golden, lambda p, v: v).offers)
    layer = {p.removeprefix("layers.1.") for p in gaps if p.startswith("layers.1.")}
    assert layer == {
        *("attn.q_rope", "attn.k_rope", "attn.scores", "attn.weights", "attn.context"),
        *("attn.out", "after_attn", "mlp.act", "mlp.down", "out"),
    }
    assert {"cache.layers.1.k", "cache.layers.1.v"} <= gaps
    assert not gaps & {"layers.1.pre_mlp_norm", "layers.1.attn.q", "final_norm", "logits"}
    own = golden.envelope("lockstep", torch.float32).noise["layers.1.mlp.act"]
    whole = golden.envelope("free", torch.float32).noise["layers.1.mlp.act"]
    error = 2 * whole.along + 0.0
    assert error > 4 * own.along, "the case no longer separates the two envelopes"

    def drift(probe: str, value: Tensor) -> Tensor:
        return value * (1 + error) if probe.endswith(".mlp.act") else value

    assert trial(Gappy(golden, drift), golden, torch.float32).conforms
    assert not judged(golden, drift).conforms


def test_a_kernel_without_scores_leaves_no_gap(golden: Golden) -> None:
    class Fused(Replay):
        lacks = ("*.attn.scores", "*.attn.weights")

    assert not behind_gaps(golden.probes(Level.L5), Fused(golden, lambda p, v: v).offers)
