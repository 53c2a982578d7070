"""What a stage is asked, and how its answer is compared with the reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.envelope import K, half_step
from conformance.text import TextFinding

AGREES = "the reference's log-probabilities"


@dataclass(frozen=True)
class Question:
    """What a stage is asked, and the reference's answer, with which `answer` must agree.

    `needs` are stages that the answer also rests on: where one of them is guilty, it says nothing.
    """

    stage: str
    shown: str
    expected: Any
    answer: Callable[[], Any]
    needs: tuple[str, ...] = ()


def differences(questions: Iterator[Question], guilty: set[str]) -> Iterator[TextFinding]:
    """`guilty` are the stages found so far; what needs one of them is not asked."""
    guilty = set(guilty)
    for question in questions:
        if not guilty.isdisjoint(question.needs):
            continue
        try:
            got = question.answer()
        except Exception as error:  # whatever a faulty stage raises is what it answers
            got = repr(error)
        if got != question.expected:
            guilty.add(question.stage)
            yield TextFinding(question.stage, question.shown, question.expected, got)


def allowance(golden: Any, stage: str) -> float:
    """What float32 may differ by from the truth, relative to the row's largest log-probability."""
    return K["lockstep"] * float(golden["noise"][stage]) + half_step(torch.float32)


def within(value: Tensor, truth: Tensor, scale: float, allowed: float) -> str:
    """AGREES, or by how much the farthest of some log-probabilities is off; NaN is outside."""
    error = float((value - truth).abs().max()) / (scale or 1.0)
    if error <= allowed:
        return AGREES
    return f"off by {error:.1e} of the row's scale, where {allowed:.1e} is allowed"


def spelled(settings: Mapping[str, Any]) -> str:
    """Settings as a report shows them, without those that ask for nothing."""
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value) or "no settings"
