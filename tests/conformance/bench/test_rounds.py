"""Turns and ratios, from planted times: nothing here reads a clock."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.bench.forms import KINDS, OURS, Form, forms
from conformance.bench.limits import Limits
from conformance.bench.rounds import Played, Spread, differing, held_against, play, ratios
from conformance.bench.scenarios import Scenario
from conformance.bench.work import LayerWork, Work
from conformance.bench.worker import Worker
from engine.errors import RequestError

DECODE = Scenario("decode, batch 1", "decode", {"prompts": [[1, 2, 3]], "n": 4}, tokens=4)
PREFILL = Scenario("prefill 3", "prefill", {"prompt": [1, 2, 3]}, tokens=3)
LOAD = Scenario("loading", "load", {})
WORK = Work(10, weights=1000, per_token=50, head=10, layers=(LayerWork(8, None, 4),))
MACHINE = {"bandwidth": 1e3, "row": 5e2, "matrix": {"float32": 1e4}}


class Planted:
    """Answers with times that were planted: one after another for each question."""

    def __init__(self, name: str, log: list[tuple[str, str]], **times: list[float]) -> None:
        self.name, self.log = name, log
        self.times = {question: iter(planted) for question, planted in times.items()}

    def ask(self, question: str, **details: Any) -> Any:
        self.log.append((self.name, question))
        match question:
            case "start":
                return {"loaded": 1.0, "first_answer": 2.0}
            case "memory":
                return {
                    "before": 1,
                    "start": 30,
                    "answer": {"transformers": 30, "eager": 20}[self.name],
                }
            case "limits":
                return MACHINE
        return {"seconds": next(self.times[question]), "ids": [[7, 8, 9]]}


@pytest.fixture
def log() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def played(log: list[tuple[str, str]]) -> Played:
    workers = {
        "transformers": Planted("transformers", log, decode=[99, 4, 8, 6], load=[1, 1, 1, 1]),
        "eager": Planted("eager", log, decode=[99, 2, 2, 2], load=[2, 2, 2, 2]),
    }
    return play(workers, Planted("limits", log), both(), [DECODE, LOAD], 3, lambda message: None)


def both() -> list[Form]:
    return forms(["transformers", "eager"], "float32")


def test_every_form_has_its_turn_in_every_round_and_nobody_is_always_first(
    played: Played, log: list[tuple[str, str]]
) -> None:
    """The first round warms up and is not counted."""
    turns = [name for name, question in log if question == "decode"]
    assert turns[2:] == ["transformers", "eager", "eager", "transformers", "transformers", "eager"]
    assert played.seconds[DECODE.name] == {"transformers": [4, 8, 6], "eager": [2, 2, 2]}
    assert [question for name, question in log if name == "limits"] == ["limits"] * 3


def test_ratios_are_of_the_same_round(played: Played) -> None:
    """Medians of both would give 3 as well; the spread they would not give."""
    found = {(r.scenario, r.form, r.against): r.value for r in ratios(played, both(), works())}
    assert found[DECODE.name, "eager", "transformers"] == Spread(3, 2, 4)
    assert found["loading", "eager", "transformers"] == Spread(0.5, 0.5, 0.5)
    assert found["memory", "eager", "transformers"] == Spread(1.5, 1.5, 1.5)
    assert ("loading", "eager", "limit") not in found
    assert (DECODE.name, "transformers", "eager") not in found


def test_a_share_is_what_the_slower_limit_allows(played: Played) -> None:
    """Four steps read 1000 bytes of weights and 8 of each token in view: of 4, 5, 6 and 7."""
    found = {(r.form, r.against): r.value for r in ratios(played, both(), works())}
    least = (4 * 1000 + 8 * (4 + 5 + 6 + 7)) / 1e3
    assert found["eager", "limit"].median == pytest.approx(least / 2)
    slow = Limits(bandwidth=1e9, row=1.0, matrix={"float32": 10.0})
    assert slow.seconds(1000, 50, "float32") == 5


def works() -> dict[str, Work]:
    return {"transformers": WORK, "eager": WORK}


def test_who_is_held_against_whom() -> None:
    chosen = [*(KINDS.values()), *forms(["compiled+float16", "transformers+float16"], "float32")]
    assert {form.name: held_against(form, chosen) for form in chosen} == {
        "transformers": [],
        "transformers-compiled": ["transformers"],
        "eager": ["transformers", "transformers-compiled"],
        "compiled": ["transformers", "transformers-compiled", "eager"],
        "compiled+float16": ["transformers", "transformers-compiled", "eager"],
        "transformers+float16": ["transformers", "transformers-compiled"],
    }


def test_a_form_is_not_asked_what_another_answers_for_it(log: list[tuple[str, str]]) -> None:
    lazy = Form("eager", OURS, "float32", unasked=("load",))
    worker = Planted("eager", log, decode=[1, 1])
    played = play(
        {"eager": worker}, Planted("limits", log), [lazy], [DECODE, LOAD], 1, lambda _: None
    )
    assert "loading" not in played.seconds
    assert ("eager", "load") not in log


def test_other_ids_are_counted_from_where_they_part() -> None:
    same, other = [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 0, 6]]
    played = Played([DECODE], ids={"decode": {"transformers": same, "eager": other}})
    assert differing(played, both())["decode"] == {
        "transformers": "equal",
        "eager": "1 of 2 from 1",
    }
    played.ids["decode"]["eager"] = [[1, 2], [0, 5, 6]]
    assert differing(played, both())["decode"]["eager"] == "2 of 2 from 0"


def test_a_worker_whose_steps_take_longer_is_found_slower() -> None:
    """Through real processes, which say that they took 50 and 2 milliseconds for a token."""
    module = ("tests.conformance.bench.planted_worker",)
    chosen = [Form("transformers", module, "float32"), Form("eager", module, "float32")]
    machine = Planted("limits", [])
    with (
        Worker("transformers", module, {"step": 0.05}, lambda _: None) as slow,
        Worker("eager", module, {"step": 0.002}, lambda _: None) as quick,
    ):
        workers = {"transformers": slow, "eager": quick}
        played = play(workers, machine, chosen, [DECODE, PREFILL], 1, lambda _: None)
    found = {
        (r.scenario, r.form, r.against): r.value.median for r in ratios(played, chosen, works())
    }
    assert found[DECODE.name, "eager", "transformers"] == pytest.approx(25)
    assert found[PREFILL.name, "eager", "transformers"] == pytest.approx(25)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["lazy"],
            "no form 'lazy'; there are eager, compiled, transformers, transformers-compiled",
        ),
        (["eager+int3"], "no 'int3' for eager; there are float32, bfloat16, float16, int8, int4"),
        (["transformers+int8"], "no 'int8' for transformers; there are float32, bfloat16, float16"),
        (["eager", "eager"], "the form eager is named twice"),
        ([], "no form was named"),
    ],
)
def test_unknown_forms_are_refused(names: list[str], says: str) -> None:
    with pytest.raises(RequestError, match="^" + says.replace("+", r"\+")):
        forms(names, "float32")


def test_a_name_says_dtype_and_quantization() -> None:
    [form] = forms(["compiled+float16"], "bfloat16")
    assert (form.dtype, form.options) == ("float16", {"compiled": True})
    assert forms(["eager"], "bfloat16")[0].dtype == "bfloat16"
