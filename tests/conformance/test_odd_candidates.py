"""Whatever an engine shows a tap, or raises, it is never taken for right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.candidate import Candidate, Level, Tap, made
from conformance.golden import Golden
from conformance.verdict import Trial, trial
from engine.errors import LockstepError
from tests.conformance.replay import Replay

TARGET = "logits"


class Odd(Replay):
    """Shows the truth everywhere, and something odd at one probe."""

    odd: Callable[[Tensor], Any]
    probe = TARGET

    def step(self, ids: Tensor, tap: Tap) -> None:
        def shown(probe: str, value: Tensor) -> Tensor:
            return tap(probe, self.odd(value) if probe == self.probe else value)

        super().step(ids, shown)


def judged(golden: Golden, odd: Callable[[Tensor], Any], probe: str, level: Level) -> Trial:
    candidate = Odd(golden, level=level)
    candidate.odd, candidate.probe = odd, probe  # type: ignore[method-assign]
    return trial(candidate, golden, torch.float32)


ODD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a text": (lambda v: "hello", "is a str, not a torch.Tensor"),
    "nothing": (lambda v: None, "is a NoneType, not a torch.Tensor"),
    "a tuple": (lambda v: (v, None), "is a tuple, not a torch.Tensor"),
    "numpy": (lambda v: v.numpy(), "is a ndarray, not a torch.Tensor"),
    "sparse": (lambda v: v.to_sparse(), "is a tensor without numbers in rows"),
    "meta": (lambda v: v.to("meta"), "is a tensor without numbers in rows"),
    "a number": (lambda v: torch.tensor(1.0), "has the shape (), the reference (1, 21, 67)"),
    "no batch": (lambda v: v[0], "has the shape (21, 67), the reference (1, 21, 67)"),
    "empty": (lambda v: v[:0], "has the shape (0, 21, 67), the reference (1, 21, 67)"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("level", [Level.L3, Level.L5])
def test_what_is_no_tensor_of_the_right_shape_is_a_finding_at_its_probe(
    golden: Golden, name: str, level: Level
) -> None:
    """The last probe above all: nothing comes behind it that would be missed."""
    odd, problem = ODD[name]
    result = judged(golden, odd, TARGET, level)
    found = [c.finding for c in result.culprits] or list(result.propagated)
    assert {f.probe for f in found} == {TARGET}
    assert found[0].problem == problem


def test_ids_that_are_no_whole_numbers_are_a_finding(golden: Golden) -> None:
    result = judged(golden, lambda v: v.float(), "next_id", Level.L1)
    assert [f.problem for f in result.propagated] == ["is torch.float32, ids are whole numbers"]


def test_the_odd_operation_is_blamed_and_not_the_one_behind_it(golden: Golden) -> None:
    result = judged(golden, lambda v: (v, None), "layers.1.attn.out", Level.L5)
    assert [c.finding.probe for c in result.culprits] == ["layers.1.attn.out"]


def test_an_engine_that_raises_behind_its_last_probe_diverges(golden: Golden) -> None:
    class Late(Replay):
        def step(self, ids: Tensor, tap: Tap) -> None:
            super().step(ids, tap)
            raise ValueError("too late to be noticed")

    result = trial(Late(golden), golden, torch.float32)
    assert not result.conforms
    assert "was followed by: ValueError: too late to be noticed" in str(result.culprits[0])


def test_a_partial_candidate_that_knows_nothing_has_shown_nothing(golden: Golden) -> None:
    class Blank(Replay):
        partial = True

    blank = Blank(golden, lambda p, v: torch.full_like(v, torch.nan), Level.L3)
    result = trial(blank, golden, torch.float32)
    assert not result.conforms
    assert "is unknown throughout" in str(result)


def test_scores_may_be_kept_in_float32(golden: Golden) -> None:
    """Kernels do, and are the more exact for it."""

    def wide(probe: str, value: Tensor) -> Tensor:
        return value.float() if probe.endswith((".scores", ".weights")) else value

    assert trial(Replay(golden, wide, dtype=torch.float16), golden, torch.float16).conforms


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"level": "L3"}, "has the level 'L3'; it must be a Level"),
        ({"prefill": ()}, r"has the prefill \(\)"),
        ({"prefill": (0,)}, r"has the prefill \(0,\)"),
        ({"prefill": ("a",)}, r"has the prefill \('a',\)"),
    ],
)
def test_a_candidate_that_contradicts_its_protocol_is_refused(
    golden: Golden, change: dict[str, Any], complaint: str
) -> None:
    candidate = Replay(golden)
    for name, value in change.items():
        setattr(candidate, name, value)
    with pytest.raises(LockstepError, match=complaint):
        made(lambda *_: [candidate], golden.folder, "cpu", "float32")


def test_a_factory_that_leaves_the_process_leaves_no_verdict(golden: Golden) -> None:
    """sys.exit(0) would read as "conforms", and sys.exit("...") as "diverges"."""

    def leaving(*_: Any) -> list[Candidate]:
        raise SystemExit(0)

    with pytest.raises(LockstepError, match="made no candidate"):
        made(leaving, golden.folder, "cpu", "float32")
