"""Random logits, texts and options in any company, against transformers' processors in a process of their own.

Equal are the tokens that are left and their probabilities, before the cuts and after. Where a rounding
decides in the reference which tokens are left, the setting is counted and set aside.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from torch import Tensor

from conformance.decision_cases import Past, Row, from_json, settled
from conformance.envelope import K, half_step
from conformance.process import ROOT
from conformance.strategies.settings import Asked, asked
from engine import SamplingParams
from engine.errors import RequestError
from engine.generate import processors
from engine.generate.processors import History
from engine.generate.sample import Sampler

SETTINGS = 20_000 if settings().max_examples >= 10_000 else 1_000
Reference = Callable[[Asked], Any]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    """Answers one question after another until the module is done."""
    with subprocess.Popen(
        [sys.executable, "-m", "conformance.oracle", "settings"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def answer(question: Asked) -> Any:
            asks.write(json.dumps(dataclasses.asdict(question)) + "\n")
            asks.flush()
            return json.loads(answers.readline())

        yield answer
        asks.close()


def verdict(question: Asked, truth: Any) -> str:
    """Says equal, none left (where that is right), set aside, or how the engine differs."""
    row = question.row.logits()
    past, params = question.past, SamplingParams(**from_json(question.settings))
    history = History(past.prompt, past.answer, frozenset(past.ends), past.limit)
    try:
        scores = Sampler(params).scores(row, history).values
    except RequestError as error:
        return "none left" if truth is None else f"refused: {error}"
    if truth is None:
        return "a token is left"
    ranked = torch.tensor(truth["ranked"], dtype=torch.float64)
    before = processors.penalised(row, params, history).log_softmax(-1)
    if said := _differs(before, ranked, truth["error"]):
        return f"before the cuts {said}"
    if not truth["stable"]:
        return "set aside"
    values = torch.tensor(truth["values"], dtype=torch.float64)
    after = settled(ranked, scores.double().log_softmax(-1))
    said = _differs(after, settled(ranked, values), truth["error"])
    return f"after the cuts {said}" if said else "equal"


def _differs(got: Tensor, truth: Tensor, noise: float) -> str:
    """How log-probabilities [V] depart from the reference's in float64, or nothing."""
    kept = truth.isfinite()
    if not torch.equal(got > -torch.inf, kept):
        return f"{int((got > -torch.inf).sum())} tokens are left, not {int(kept.sum())}"
    error = float((got[kept] - truth[kept]).abs().max())
    allowed = K["lockstep"] * noise + half_step(torch.float32)
    scale = float(truth[kept].abs().max()) or 1.0
    return "" if error <= allowed * scale else f"they are off by {error / scale:.1e}"


@pytest.mark.timeout(0)  # at night
def test_support_and_probabilities_are_the_references(reference: Reference) -> None:
    said, used = Counter[str](), Counter[str]()

    @settings(max_examples=SETTINGS, suppress_health_check=[HealthCheck.too_slow])
    @given(question=asked())
    def judge(question: Asked) -> None:
        found = verdict(question, reference(question))
        said[found] += 1
        used.update(question.settings.keys())
        assert found in ("equal", "none left", "set aside"), found

    judge()
    total = sum(said.values())
    assert total >= SETTINGS
    assert said["set aside"] < 0.02 * total, said
    assert said["none left"] < 0.1 * total, said
    assert len(used) == 16
    assert min(used.values()) > 0.2 * total, used


def test_where_a_rounding_decides_the_setting_is_set_aside(reference: Reference) -> None:
    """A third of 93 equal tokens are 31, or 32 if their shares add up to less than a third."""
    row = Row("equal", vocab=93, spread=0.05, step=1.0)
    third = Asked(row, Past(), {"temperature": 1.0, "top_p": 1 / 3})
    half = Asked(row, Past(), {"temperature": 1.0, "top_p": 0.5})
    assert reference(third)["stable"] is False
    assert verdict(third, reference(third)) == "set aside"
    assert verdict(half, reference(half)) == "equal"


def test_a_fault_is_found_and_shrinks(
    reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a frequency penalty that counts the prompt there is left the penalty, and one token.

    Hypothesis tries in another order wherever it knows other constants, and may leave one setting more.
    """
    right = processors.penalised

    def penalised(logits: Tensor, params: SamplingParams, history: History) -> Tensor:
        if params.frequency_penalty:
            history = dataclasses.replace(history, answer=history.tokens)
        return right(logits, params, history)

    monkeypatch.setattr(processors, "penalised", penalised)
    smallest = find(
        asked(),
        lambda question: verdict(question, reference(question)).startswith("before"),
        settings=settings(max_examples=1_000, database=None, derandomize=True),
    )
    assert smallest.row.vocab <= 3
    assert len(smallest.past.prompt) == 1
    assert smallest.past.answer == ()
    assert {"temperature", "frequency_penalty"} <= set(smallest.settings)
    assert len(smallest.settings) <= 3
