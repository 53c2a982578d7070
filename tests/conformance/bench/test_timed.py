"""What is timed of a subject: which calls, and which of their times count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from conformance.bench.stages import StageFigures
from conformance.bench.timed import TICK, Ids, Timed

CPU = torch.device("cpu")


class Ticking:
    """A subject with a clock of its own, on which a token takes 2 seconds and everything else 1."""

    device = CPU

    def __init__(self) -> None:
        self.time = 0.0
        self.answered: list[int] = []

    def load(self) -> None:
        self.time += 1

    def answer(self, prompts: Sequence[Ids], n: int) -> list[Ids]:
        self.answered.append(n)
        self.time += 1 + 2 * n
        return [[7] * n for _ in prompts]

    def stream(self, prompt: Ids, n: int, came: Callable[[], None]) -> None:
        self.time += 1
        for _ in range(n):
            self.time += 2
            came()

    def read(self, prompt: Ids) -> int:
        self.time += 1
        return 5

    def speak(self, text: str) -> str:
        self.time += 1
        return text

    def stages(self, text: str) -> dict[str, StageFigures]:
        return {"load": StageFigures(1.0, 8)}

    def about(self) -> dict[str, Any]:
        return {"weights": 8}


@pytest.fixture
def subject() -> Ticking:
    return Ticking()


@pytest.fixture
def timed(subject: Ticking, monkeypatch: pytest.MonkeyPatch) -> Timed:
    monkeypatch.setattr("conformance.bench.clock.time.perf_counter", lambda: subject.time)
    return Timed(lambda: subject, CPU)


def test_a_decoding_step_is_timed_without_the_prompt(timed: Timed, subject: Ticking) -> None:
    """Five steps after the first token; the prompt and that token cancel out."""
    assert timed.questions["decode"](prompts=[[1], [2]], n=5) == {
        "seconds": 10,
        "ids": [[7] * 6] * 2,
    }
    assert subject.answered == [1, 6]


def test_no_time_is_negative(
    timed: Timed, subject: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two calls that are nearly nothing the second may be the quicker one."""
    monkeypatch.setattr(
        subject, "answer", lambda prompts, n: setattr(subject, "time", 10.0 / n) or []
    )
    assert timed.questions["decode"](prompts=[[1]], n=5)["seconds"] == TICK


def test_each_token_has_its_own_time(timed: Timed) -> None:
    assert timed.questions["growth"](prompt=[1], n=3) == {"first": 3, "steps": [2, 2, 2]}


def test_the_other_questions_time_one_call(timed: Timed) -> None:
    ask = timed.questions
    assert ask["prefill"](prompt=[1, 2]) == {"seconds": 1, "ids": [[5]]}
    assert ask["first"](text="a")["seconds"] == 1
    assert ask["load"]() == {"seconds": 1}
    assert ask["start"](prompt=[1]) == {"weights": 8, "loaded": 0, "first_answer": 5}
    assert ask["stages"](text="a") == {"load": {"seconds": 1.0, "bytes": 8}}


def test_memory_is_that_of_an_answer_of_its_own(timed: Timed, subject: Ticking) -> None:
    """A first one is not counted: it may have to compile."""
    taken = timed.questions["memory"](prompt=[1], n=4)
    assert subject.answered == [4, 4]
    assert set(taken) == {"before", "start", "answer"}
    assert min(taken.values()) > 1e6
