"""Workers: answers, progress and errors pass the pipe, whatever else is printed, and nobody stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.bench.worker import Worker
from engine.errors import LockstepError

MODULE = ("tests.conformance.bench.planted_worker",)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def worker(said: list[str]) -> Iterator[Worker]:
    with Worker("napper", MODULE, {"step": 0.0}, said.append) as worker:
        yield worker


def test_questions_are_answered_in_turn(worker: Worker, said: list[str]) -> None:
    """What a library prints is no answer; progress bears the worker's name."""
    assert worker.ask("decode", prompts=[[1, 2]], n=3)["ids"] == [[0, 1, 2]]
    assert worker.ask("prefill", prompt=[1])["ids"] == [[0]]
    assert said == ["napper: waking up"]


def test_an_error_is_one_sentence_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises(LockstepError, match=r"^napper: no idea$"):
        worker.ask("fail")
    assert worker.ask("prefill", prompt=[1])["ids"] == [[0]]


def test_a_start_that_fails_says_why() -> None:
    with (
        Worker("napper", MODULE, {"refuses": "too tired"}, lambda said: None) as worker,
        pytest.raises(LockstepError, match=r"^napper: too tired$"),
    ):
        worker.ask("load")


def test_who_ends_unasked_is_named_with_its_last_words() -> None:
    with Worker("napper", MODULE, {"step": 0.0}, lambda said: None) as worker:
        with pytest.raises(LockstepError, match="napper ended with status 3: out of memory, said"):
            worker.ask("end")
        with pytest.raises(LockstepError, match="napper ended with status 3"):
            worker.ask("load")


def test_a_closed_worker_is_gone() -> None:
    with Worker("napper", MODULE, {"step": 0.0}, lambda said: None) as worker:
        process = Path("/proc") / str(worker.ask("process"))
        there = process.exists()
    assert there == Path("/proc/self").exists()
    assert not process.exists()
