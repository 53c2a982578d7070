"""What the suite says of a candidate that does one thing otherwise, without any engine at work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.candidate import Level, Tap
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.verdict import Trial, trial
from engine.errors import RequestError
from tests.conformance.replay import Change, Replay, at, judged

TARGET = "layers.1.mlp.up"


def test_the_truth_itself_conforms_and_everything_is_compared(golden: Golden) -> None:
    result = judged(golden, lambda probe, value: value)
    assert result.conforms
    assert result.probes == len(golden.manifest["probes"]) + 1  # and the logprobs
    per_walk = sum(
        golden.truth(p, 0, len(golden.ids))[..., 0].numel()
        for p in golden.manifest["probes"]
        if not p.startswith("cache.")
    )
    assert result.rows > 2 * per_walk
    assert not result.skipped


def test_an_error_of_one_element_names_its_position_and_head(golden: Golden) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        if value.shape[2] > 1:
            value[0, 3, 17, 5] *= 1.01
        return value

    result = judged(golden, at("layers.2.attn.q_rope", alter))
    (culprit,) = result.culprits
    found = culprit.finding
    assert (found.probe, found.step, found.position, found.head) == (
        "layers.2.attn.q_rope",
        0,
        17,
        3,
    )
    assert found.error is not None and found.allowance is not None
    assert found.error > found.allowance > 0
    assert culprit.graft_confirms


def test_the_position_in_a_decode_step_counts_from_the_sequences_start(golden: Golden) -> None:
    last = len(golden.ids) - 1

    def alter(probe: str, value: Tensor) -> Tensor:
        return value * 1.01 if replay.position == last + 1 else value

    replay = Replay(golden, at(TARGET, alter))
    (culprit,) = trial(replay, golden, torch.float32).culprits
    assert culprit.finding.position == last
    assert culprit.finding.step == len(golden.schedule) - 1


def test_a_bias_below_the_largest_error_is_caught_by_its_root_mean_square(golden: Golden) -> None:
    """A shift of a whole row as large as one rounding of its largest element is no noise."""
    noise = golden.envelope("lockstep", torch.float32).noise[TARGET]
    shift = 1.5 * noise.largest
    assert shift > 2 * noise.rms + 2**-24, "the case no longer separates the two rules"

    def alter(probe: str, value: Tensor) -> Tensor:
        return value + shift * value.abs().amax(-1, keepdim=True)

    (culprit,) = judged(golden, at(TARGET, alter)).culprits
    assert culprit.finding.probe == TARGET


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (lambda p, v: v[..., :-1], "has the shape"),
        (lambda p, v: v.double(), "is torch.float64"),
        (lambda p, v: v.index_fill(-1, torch.tensor([3]), torch.nan), "is not finite"),
        (lambda p, v: v.index_fill(-1, torch.tensor([3]), torch.inf), "is not finite"),
        (lambda p, v: None, "was never shown"),
    ],
)
def test_a_value_that_cannot_be_compared_fails_as_such(
    golden: Golden, alter: Change, problem: str
) -> None:
    (culprit,) = judged(golden, at(TARGET, alter)).culprits
    assert culprit.finding.probe == TARGET
    assert problem in str(culprit)


def test_logits_may_be_widened_to_float32_and_nothing_else_may(golden: Golden) -> None:
    """Samplers want float32, and many engines hand their logits out so; the numbers are the same."""

    def wide(probe: str) -> Trial:
        replay = Replay(golden, at(probe, lambda p, v: v.float()), dtype=torch.bfloat16)
        return trial(replay, golden, torch.bfloat16)

    assert wide("logits").conforms
    (culprit,) = wide(TARGET).culprits
    assert "is torch.float32, the run is torch.bfloat16" in str(culprit)


def test_a_longer_or_wider_tensor_is_never_trimmed(golden: Golden) -> None:
    """Case I08: comparing what two tensors have in common hides a vocabulary that is too wide."""
    wider = at("logits", lambda p, v: torch.cat([v, v[..., :3]], -1))
    (culprit,) = judged(golden, wider).culprits
    assert "has the shape (1, 21, 70), the reference (1, 21, 67)" in str(culprit)


def test_a_layer_too_many_is_an_error(golden: Golden) -> None:
    class Deeper(Replay):
        def step(self, ids: Tensor, tap: Tap) -> None:
            super().step(ids, tap)
            tap("layers.3.out", torch.zeros(1, len(ids), 40))

    result = trial(Deeper(golden), golden, torch.float32)
    assert [c.finding.probe for c in result.culprits] == ["layers.3.out"]
    assert "one too many" in str(result.culprits[0])


def test_a_probe_shown_twice_is_an_error(golden: Golden) -> None:
    class Twice(Replay):
        def step(self, ids: Tensor, tap: Tap) -> None:
            super().step(ids, tap)
            tap("embed", torch.zeros(1, len(ids), 40))

    result = trial(Twice(golden), golden, torch.float32)
    assert "shown twice" in str(result.culprits[0])


def test_a_masked_place_that_is_let_in_is_an_error(golden: Golden) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        return value.masked_fill(value == -torch.inf, 0.0)

    (culprit,) = judged(golden, at("layers.0.attn.scores", alter)).culprits
    assert "masked place" in str(culprit)


def test_a_finite_mask_as_large_as_the_dtype_is_legal(golden: Golden) -> None:
    low = torch.finfo(torch.float32).min

    def alter(probe: str, value: Tensor) -> Tensor:
        return value.masked_fill(value == -torch.inf, low)

    assert judged(golden, at("layers.0.attn.scores", alter)).conforms


def test_an_engine_that_raises_is_at_fault_where_it_stopped(golden: Golden) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        raise ValueError("no such kernel")

    result = judged(golden, at("layers.1.attn.context", alter))
    assert not result.conforms
    (culprit,) = result.culprits
    assert culprit.finding.probe == "layers.1.attn.context"
    assert "ValueError: no such kernel" in str(culprit)


def test_an_engine_that_stops_early_has_wrong_logits_and_no_proof(golden: Golden) -> None:
    """Logits that were never shown must not read as logits that are right."""

    def alter(probe: str, value: Tensor) -> Tensor:
        raise ValueError("no such kernel")

    result = judged(golden, at("layers.1.attn.context", alter))
    assert result.logits_outside
    assert not result.culprits[0].graft_confirms
    assert "test_verdict.py" in str(result.culprits[0]), "where it was raised"


def test_a_shallow_trial_says_in_words_what_was_wrong(golden: Golden) -> None:
    sound = str(judged(golden, lambda p, v: v, Level.L3))
    assert sound == "conforms: 2 probes"
    wrong = str(judged(golden, lambda p, v: v[..., -1:, :], Level.L3))
    assert wrong.startswith("diverges: ")
    assert "outside  logits  step 0  has the shape (1, 1, 67), the reference (1, 21, 67)" in wrong


def test_faults_of_several_operations_are_each_blamed(golden: Golden) -> None:
    def alter(probe: str, value: Tensor) -> Tensor:
        guilty = ("layers.0.attn.k", "layers.0.attn.k_rope", "layers.2.mlp.act", "cache.layers.1.v")
        return value * 1.001 if probe in guilty else value

    assert [c.finding.probe for c in judged(golden, alter).culprits] == [
        "layers.0.attn.k",
        "layers.0.attn.k_rope",
        "cache.layers.1.v",
        "layers.2.mlp.act",
    ]


def test_a_graft_that_leaves_something_wrong_confirms_nothing(golden: Golden) -> None:
    """A second fault that only shows when nothing is re-synchronised must not pass for proved."""

    class Remembering(Replay):
        def step(self, ids: Tensor, tap: Tap) -> None:
            grafted: list[str] = []

            def watching(probe: str, value: Tensor) -> Tensor:
                if probe == "logits" and "final_norm" not in grafted:
                    value = value * 1.01
                returned = tap(probe, value)
                if returned is not value:
                    grafted.append(probe)
                return returned

            super().step(ids, watching)

    faulty = Remembering(golden, at("embed", lambda p, v: v * 1.01))
    result = trial(faulty, golden, torch.float32)
    assert [c.finding.probe for c in result.culprits] == ["embed"]
    assert not result.culprits[0].graft_confirms
    assert {f.probe for f in result.propagated} == {"logits", "logprobs"}


def nudged_choice(golden: Golden, margin_left: float) -> Change:
    """Makes the second best token of the first position win, by a small amount beyond the margin."""
    row = golden.truth("logits", 0, 1)[0]
    first, second = row.topk(2).indices.tolist()
    gap = float(row[first] - row[second])

    def alter(probe: str, value: Tensor) -> Tensor:
        if value.shape[1] > 1:
            value[0, 0, second] += gap * (1 + margin_left)
        return value

    return at("logits", alter)


def test_a_choice_that_the_reference_is_sure_of_is_a_bug(golden: Golden) -> None:
    result = judged(golden, nudged_choice(golden, 0.01))
    (found,) = result.disagreements
    assert (found.position, found.is_tie) == (0, False)
    assert not result.conforms


def test_a_choice_within_the_noise_is_a_tie_and_does_not_fail() -> None:
    """In bfloat16 the noise is larger than many margins: other tokens are legal there."""
    golden = Golden(REPOSITORY_GOLDENS / "llama-gqa")
    tight = min(range(len(golden.ids)), key=lambda t: golden.manifest["margins"][t])
    first, second = golden.truth("logits", tight, tight + 1)[0].topk(2).indices.tolist()

    def alter(probe: str, value: Tensor) -> Tensor:
        if probe == "logits" and value.shape[1] > tight:
            swapped = value[0, tight, [second, first]].clone()
            value[0, tight, [first, second]] = swapped
        return value

    result = trial(Replay(golden, alter, dtype=torch.bfloat16), golden, torch.bfloat16)
    assert [d.position for d in result.disagreements] == [tight]
    assert result.disagreements[0].is_tie
    assert result.conforms


@pytest.mark.parametrize("level", list(Level)[1:])
def test_every_level_conforms_on_the_truth_and_compares_something(
    golden: Golden, level: Level
) -> None:
    result = judged(golden, lambda probe, value: value, level)
    assert result.conforms
    assert result.probes > 0 or level == Level.L1
    assert result.dtype == "float32"


@pytest.mark.parametrize(
    ("level", "probe"), [(Level.L1, "next_id"), (Level.L2, "logprobs"), (Level.L3, "logits")]
)
def test_a_shallow_candidate_is_still_caught(golden: Golden, level: Level, probe: str) -> None:
    def alter(name: str, value: Tensor) -> Tensor:
        assert name == probe
        return value + 1 if level == Level.L1 else -value

    assert not judged(golden, alter, level).conforms


def test_a_trial_of_text_alone_is_refused(golden: Golden) -> None:
    """It would compare nothing, and what was not compared must not conform."""
    with pytest.raises(RequestError, match="compares ids at least"):
        judged(golden, lambda probe, value: value, Level.L0)


def test_chunks_make_a_schedule_of_every_token(golden: Golden) -> None:
    assert golden.schedule_in(None) == golden.schedule == [21, 1, 1, 1, 1, 1, 1]
    assert golden.schedule_in(5) == [5, 5, 5, 5, 1, 1, 1, 1, 1, 1, 1]
    assert golden.schedule_in(21) == golden.schedule
    assert golden.schedule_in(7) == [7, 7, 7, 1, 1, 1, 1, 1, 1]
