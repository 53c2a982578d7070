"""Beam search in lockstep: its answers and their scores are transformers', and who is to blame where not.

    beams.json
        noise                how far float32 moves a log-probability of an answer, at most
        searches             what was asked (`prompt`, `params`), and the `answers`, the best first;
                             `margin` is by how much every log-probability would have to be off for
                             another choice somewhere, `met` what the search went through

Where an answer is another, the search runs once more on logits that are computed from each beam's first
token on, without a cache. If that is right, the rooms of the beams were mixed up (`beams.cache`), else
it chose wrongly (`beams.search`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from conformance.envelope import K, half_step
from conformance.text import TextFinding
from engine.generate import BeamSearch, Completion, Engine, SamplingParams
from engine.generate.beam import Search
from engine.generate.request import completions

#: In the order in which they are looked at; the first with a finding is the only one.
STAGES = ("beams.search", "beams.cache", "beams.score", "beams.answer")

_OF_BEAMS = ("beams", "length_penalty", "early_stopping")


def check_beams(engine: Engine, folder: Path) -> list[TextFinding]:
    """What differs from the golden's answers, a finding for each search that does."""
    golden = json.loads((folder / "beams.json").read_text(encoding="utf-8"))
    return [
        finding
        for search in golden["searches"]
        for finding in judge(engine, Asked.of(search, float(golden["noise"])))
    ]


def asked_for(settings: Mapping[str, Any]) -> SamplingParams:
    """Parameters from a flat table of settings: those of the beams, and those beside them."""
    beams = BeamSearch(**{key: settings[key] for key in _OF_BEAMS if key in settings})
    others = {key: value for key, value in settings.items() if key not in _OF_BEAMS}
    return SamplingParams(beams=beams, ignore_eos=True, **others)


@dataclass(frozen=True)
class Asked:
    """A search, the reference's answers, and how far they may be missed."""

    prompt: list[int]
    settings: Mapping[str, Any]
    tokens: list[list[int]]
    scores: list[float]
    margin: float
    noise: float

    @classmethod
    def of(cls, search: Mapping[str, Any], noise: float) -> Asked:
        """From a golden's search; `noise` is that of a log-probability."""
        tokens = [answer["token_ids"] for answer in search["answers"]]
        scores = [answer["score"] for answer in search["answers"]]
        settings = search["params"]
        return cls(search["prompt"], settings, tokens, scores, search["margin"], noise)

    @property
    def params(self) -> SamplingParams:
        return asked_for(self.settings)

    @property
    def is_tie(self) -> bool:
        """Whether another choice somewhere would be as good, for all that float32 can tell."""
        return self.margin <= K["free"] * self.noise + half_step(torch.float32)

    @property
    def limits(self) -> list[float]:
        """How far each score may be off: as far as the log-probabilities of its answer, and a rounding."""
        k, floor = K["free"] * self.noise, half_step(torch.float32)
        power = 1 - self.settings.get("length_penalty", 1.0)
        return [
            k * len(tokens) ** power + floor * abs(score)
            for tokens, score in zip(self.tokens, self.scores, strict=True)
        ]

    def described(self) -> str:
        said = ", ".join(f"{key} {value}" for key, value in self.settings.items() if value != [])
        return f"{len(self.prompt)} ids, {said}"


def judge(engine: Engine, asked: Asked) -> Iterator[TextFinding]:
    """The first stage of a search that answers otherwise than the reference, if any does."""

    def finding(stage: str, expected: Any, got: Any) -> TextFinding:
        return TextFinding(stage, asked.described(), expected, got)

    found = _answers(lambda: engine.generate(asked.prompt, asked.params))
    tokens = _tokens(found)
    if tokens != asked.tokens and not asked.is_tie:
        naive = _answers(lambda: found_naively(engine, asked))
        stage = "beams.search" if _tokens(naive) != asked.tokens else "beams.cache"
        yield finding(stage, asked.tokens, tokens)
    if tokens != asked.tokens or isinstance(found, str):
        return
    scores = [answer.score for answer in found]
    limits = asked.limits
    if not all(map(_near, scores, asked.scores, limits)):
        naive = _answers(lambda: found_naively(engine, asked))
        alone = [] if isinstance(naive, str) else [answer.score for answer in naive]
        right = len(alone) == len(limits) and all(map(_near, alone, asked.scores, limits))
        yield finding("beams.cache" if right else "beams.score", asked.scores, scores)
        return
    said = [_said_of(answer) for answer in found]
    if said != (right_words := _right_words(asked)):
        yield finding("beams.answer", right_words, said)


def found_naively(engine: Engine, asked: Asked) -> list[Completion]:
    """The same search on logits that are computed from each beam's first token on, without a cache."""
    request = engine.request(asked.prompt, asked.params)
    search = Search(request)
    while True:
        sequences = [[*request.prompt, *beam.tokens] for beam in search.running]
        search.push(torch.stack([engine.logits(tokens)[-1] for tokens in sequences]))
        if search.done:
            search.tell()
            return completions(request)


def moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The searches of a golden made again that are not what they were, within the noise that it stores."""
    old, new = before["searches"], after["searches"]
    if len(old) != len(new):
        yield "beams.json", f"holds {len(new)} searches, were {len(old)}"
        return
    for was, now in zip(old, new, strict=True):
        first, second = Asked.of(was, before["noise"]), Asked.of(now, before["noise"])
        if (first.prompt, first.settings) != (second.prompt, second.settings):
            yield first.described(), f"is {second.described()}"
        elif first.tokens != second.tokens:
            yield first.described(), "has other answers"
        elif not all(map(_near, second.scores, first.scores, first.limits)):
            yield first.described(), "has other scores"


def _answers(ask: Callable[[], Completion | list[Completion]]) -> list[Completion] | str:
    """Answers, or the error instead of them: whatever a faulty search raises is what it answers."""
    try:
        found = ask()
    except Exception as error:
        return repr(error)
    return found if isinstance(found, list) else [found]


def _tokens(found: list[Completion] | str) -> Any:
    return found if isinstance(found, str) else [answer.token_ids for answer in found]


def _near(score: float | None, right: float, limit: float) -> bool:
    return score is not None and abs(score - right) <= limit  # NaN is not


def _said_of(answer: Completion) -> list[Any]:
    return [answer.index, answer.finish_reason, answer.usage]


def _right_words(asked: Asked) -> list[list[Any]]:
    """What follows from the answers: their places, why they end, and what is counted."""
    ends = asked.settings["stop_token_ids"]
    n_prompt, n_completed = len(asked.prompt), sum(map(len, asked.tokens))
    usage = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completed,
        "total_tokens": n_prompt + n_completed,
    }
    return [
        [index, "stop" if tokens[-1] in ends else "length", usage]
        for index, tokens in enumerate(asked.tokens)
    ]
