"""Forms asked in turns: in each round every form once for every scenario, while the others are idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from conformance.bench.forms import AGAINST, REFERENCE, Form
from conformance.bench.limits import Limits
from conformance.bench.scenarios import Scenario
from conformance.bench.work import Work
from conformance.bench.worker import Asked
from conformance.process import Say


@dataclass(frozen=True)
class Spread:
    """The median of the rounds, and their least and their most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Ratio:
    """How many times as good a form is as what it is held `against`: another form, or "limit".

    Of a limit it is the share that the form reaches.
    """

    scenario: str
    form: str
    against: str
    value: Spread


@dataclass
class Played:
    """What the rounds gave: seconds and ids by scenario and form, the machine's limits of each round."""

    scenarios: Sequence[Scenario]
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    ids: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)
    starts: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)


def play(
    workers: Mapping[str, Asked],
    machine: Asked,
    forms: Sequence[Form],
    scenarios: Sequence[Scenario],
    rounds: int,
    say: Say,
) -> Played:
    """Asks everyone everything once to warm up, and then in `rounds` rounds."""
    played = Played(scenarios)
    short = next((s.details["prompts"][0] for s in scenarios if s.question == "decode"), [1, 2, 3])
    for form in forms:
        say(f"{form.name}: warming up")
        played.starts[form.name] = workers[form.name].ask("start", prompt=short)
        played.memory[form.name] = workers[form.name].ask("memory", prompt=short, n=16)
        for scenario in (s for s in scenarios if s.question not in form.unasked):
            answer = workers[form.name].ask(scenario.question, **scenario.details)
            if "ids" in answer:
                played.ids.setdefault(scenario.name, {})[form.name] = answer["ids"]
    for i in range(rounds):
        played.limits.append(Limits(**machine.ask("limits")))
        turn = i % len(forms)  # nobody is always the first
        for scenario in scenarios:
            for form in (*forms[turn:], *forms[:turn]):
                if scenario.question not in form.unasked:
                    say(f"round {i + 1} of {rounds}: {scenario.name}, {form.name}")
                    answer = workers[form.name].ask(scenario.question, **scenario.details)
                    of_scenario = played.seconds.setdefault(scenario.name, {})
                    of_scenario.setdefault(form.name, []).append(answer["seconds"])
    return played


def ratios(played: Played, forms: Sequence[Form], works: Mapping[str, Work]) -> list[Ratio]:
    """Of each form against those it is held against, and against the limit, round by round."""
    found = []
    for scenario in played.scenarios:
        of_forms = played.seconds.get(scenario.name, {})
        for form in (form for form in forms if form.name in of_forms):
            seconds = of_forms[form.name]
            for against in held_against(form, forms):
                rivals = of_forms.get(against, [])
                pairs = zip(rivals, seconds, strict=False)
                if values := [rival / own for rival, own in pairs]:
                    found.append(Ratio(scenario.name, form.name, against, Spread.of(values)))
            if (todo := scenario.work(works[form.name])) is not None:
                shares = [
                    limits.seconds(*todo, form.dtype) / own
                    for limits, own in zip(played.limits, seconds, strict=True)
                ]
                found.append(Ratio(scenario.name, form.name, "limit", Spread.of(shares)))
    return [*found, *_of_memory(played, forms)]


def _of_memory(played: Played, forms: Sequence[Form]) -> list[Ratio]:
    """Of the peak of the process while it answers."""
    return [
        Ratio("memory", form.name, against, Spread(ratio, ratio, ratio))
        for form in forms
        for against in held_against(form, forms)
        for ratio in [played.memory[against]["answer"] / played.memory[form.name]["answer"]]
    ]


def held_against(form: Form, forms: Sequence[Form]) -> list[str]:
    """transformers is held against itself alone, and this engine against all that come before it."""
    names = [name for name in AGAINST if any(other.name == name for other in forms)]
    if form.name in names:
        names = names[: names.index(form.name)]
    elif form.module == REFERENCE:
        names = [name for name in names if name.startswith("transformers")]
    return names


def differing(played: Played, forms: Sequence[Form]) -> dict[str, dict[str, str]]:
    """By scenario and form: whether its ids are those of the first form, and where they part."""
    said: dict[str, dict[str, str]] = {}
    for scenario, of_forms in played.ids.items():
        truth = of_forms[next(form.name for form in forms if form.name in of_forms)]
        said[scenario] = {name: _compared(truth, ids) for name, ids in of_forms.items()}
    return said


def _compared(truth: Sequence[Sequence[int]], ids: Sequence[Sequence[int]]) -> str:
    """ "equal", or how many of the answers differ and from which token on."""
    parted = [
        next(
            (i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), min(map(len, pair))
        )
        for pair in zip(truth, ids, strict=True)
        if list(pair[0]) != list(pair[1])
    ]
    return f"{len(parted)} of {len(ids)} from {min(parted)}" if parted else "equal"
