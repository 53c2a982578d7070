"""Sampling, stopping and log-probabilities: the engine conforms, and every stage can be convicted alone."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import engine.generate.engine as loop
import engine.generate.loaded as loaded
import engine.generate.request as asked
from conformance.check import run_check
from conformance.decision_cases import (
    DRAWS,
    ENDINGS,
    FOLLOWED,
    LOGPROBS,
    NAME,
    ROWS,
    SETTINGS,
    SITUATIONS,
    settled,
)
from conformance.decisions import STAGES, check_decisions, p_value, sampling
from conformance.golden import REPOSITORY_GOLDENS
from conformance.text_vocabularies import ascii_only
from engine.errors import LockstepError, ModelFileError
from engine.generate import Completion, SamplingParams, processors
from engine.generate.answer import AnswerText, TokenLogprob
from engine.generate.engine import Engine
from engine.generate.processors import History
from engine.generate.request import Request
from engine.generate.sample import Sampler
from engine.tokenizer.stream import TokenStream

GOLDEN = REPOSITORY_GOLDENS / NAME
Patch = pytest.MonkeyPatch


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A golden that a test may damage."""
    return Path(shutil.copytree(GOLDEN, tmp_path / NAME))


def stages(folder: Path = GOLDEN) -> set[str]:
    return {found.stage for found in check_decisions(folder)}


def test_the_engine_conforms() -> None:
    report = run_check(golden=GOLDEN)
    assert [found for t in report.texts for found in t.findings] == []
    assert report.exit_status == 0


def test_the_golden_is_small() -> None:
    assert sum(file.stat().st_size for file in GOLDEN.iterdir()) < 400 * 1024


# -- a broken twin for every stage -----------------------------------------------------------------


def _wrong_temperature(patch: Patch) -> None:
    right = processors.narrowed

    def narrowed(logits: Tensor, params: SamplingParams) -> Tensor:
        warmer = params.temperature if params.temperature == 1 else params.temperature * 1.001
        return right(logits, dataclasses.replace(params, temperature=warmer))

    patch.setattr(processors, "narrowed", narrowed)


def _wrong_cut(name: str, change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        right = getattr(processors, name)
        patch.setattr(processors, name, lambda logits, setting: right(logits, change(setting)))

    return plant


def _wrong_order(patch: Patch) -> None:
    """The cuts of the first golden, in the opposite order."""

    def narrowed(logits: Tensor, params: SamplingParams) -> Tensor:
        logits = logits / params.temperature
        for name in reversed(sampling.CUTS):
            if (setting := getattr(params, name)) is not None:
                logits = getattr(processors, name)(logits, setting)
        return logits

    patch.setattr(processors, "narrowed", narrowed)


def _penalties_after_cuts(patch: Patch) -> None:
    patch.setattr(
        processors,
        "processed",
        lambda logits, params, history: processors.penalised(
            processors.narrowed(logits.double(), params) if params.temperature else logits,
            params,
            history,
        ),
    )


def _wrong_penalty(**other: Any) -> Callable[[Patch], None]:
    """What would be right if these were asked instead, where they are asked at all."""

    def plant(patch: Patch) -> None:
        right = processors.penalised

        def penalised(logits: Tensor, params: SamplingParams, history: History) -> Tensor:
            (name,) = other
            if getattr(params, name) != getattr(SamplingParams(), name):
                params = dataclasses.replace(params, **other)
            return right(logits, params, history)

        patch.setattr(processors, "penalised", penalised)

    return plant


def _answer_alone(patch: Patch) -> None:
    right = Request._history
    patch.setattr(
        Request, "_history", lambda self: dataclasses.replace(right(self), prompt=self.prompt[:1])
    )


def _stop_text_at_once(patch: Patch) -> None:
    patch.setattr(AnswerText, "_armed", True)


def _last_of_ties(patch: Patch) -> None:
    right = Sampler.choose

    def choose(self: Sampler, scores: Tensor) -> int:
        if self.params.temperature == 0:
            return len(scores) - 1 - int(scores.flip(-1).argmax())
        return right(self, scores)

    patch.setattr(Sampler, "choose", choose)


def _no_seed(patch: Patch) -> None:
    right = Sampler.__init__
    patch.setattr(
        Sampler,
        "__init__",
        lambda self, params, *guide: right(self, dataclasses.replace(params, seed=None), *guide),
    )


def _neighbours_draw(patch: Patch) -> None:
    """Of a distribution that is moved by one token: likely ones are drawn, and the wrong ones."""
    right = torch.multinomial
    patch.setattr(torch, "multinomial", lambda p, n, **how: right(p.roll(1), n, **how))


def _losing_stream(patch: Patch) -> None:
    right = TokenStream.push
    patch.setattr(TokenStream, "push", lambda self, token: right(self, token).replace("ch", "c"))


def _specials_shown(patch: Patch) -> None:
    patch.setattr(
        Engine,
        "_answer_text",
        lambda self, prompt, params: AnswerText(self.tokenizer.stream(False), params.stop),
    )


def _one_token_more(patch: Patch) -> None:
    right = Engine._limit

    def limit(self: Engine, ids: Any, params: SamplingParams) -> int:
        more = dataclasses.replace(params, max_tokens=params.max_tokens + 1)
        return right(self, ids, more)

    patch.setattr(Engine, "_limit", limit)


def _first_end_only(patch: Patch) -> None:
    right = loaded.end_ids
    patch.setattr(loaded, "end_ids", lambda *given: frozenset(sorted(right(*given))[:1]))


def _stop_ids_forgotten(patch: Patch) -> None:
    right = Engine.request

    def request(self: Engine, prompt: Any, params: SamplingParams, special: bool = False) -> Any:
        return right(self, prompt, dataclasses.replace(params, stop_token_ids=()), special)

    patch.setattr(Engine, "request", request)


def _held_text_lost(patch: Patch) -> None:
    patch.setattr(AnswerText, "finish", lambda self: "")


def _completion(patch: Patch, change: Callable[[Completion], dict[str, Any]]) -> None:
    right = loop.completions

    def completions(request: Request) -> list[Completion]:
        return [dataclasses.replace(done, **change(done)) for done in right(request)]

    patch.setattr(loop, "completions", completions)


def _always_stops(patch: Patch) -> None:
    _completion(patch, lambda done: {"finish_reason": "stop"})


def _counts_the_prompt_alone(patch: Patch) -> None:
    _completion(patch, lambda done: {"usage": {"prompt_tokens": len(done.prompt_token_ids)}})


def _neighbours_logprob(patch: Patch) -> None:
    right = asked.token_logprob

    def entry(logits: Tensor, token: int, *asked: int) -> TokenLogprob:
        neighbour = right(logits, token - 1, *asked)
        return dataclasses.replace(right(logits, token, *asked), logprob=neighbour.logprob)

    patch.setattr(asked, "token_logprob", entry)


TWINS: dict[str, Callable[[Patch], None]] = {
    "sampling.logit_bias": _wrong_penalty(logit_bias={0: 1.0}),
    "sampling.repetition_penalty": _wrong_penalty(repetition_penalty=1.01),
    "sampling.presence_penalty": _wrong_penalty(presence_penalty=0.01),
    "sampling.frequency_penalty": _wrong_penalty(frequency_penalty=0.01),
    "sampling.no_repeat_ngram_size": _wrong_penalty(no_repeat_ngram_size=2),
    "sampling.bad_words_ids": _wrong_penalty(bad_words_ids=[[2]]),
    "sampling.min_tokens": _wrong_penalty(min_tokens=6),
    "sampling.forced_bos_token_id": _wrong_penalty(forced_bos_token_id=1),
    "sampling.forced_eos_token_id": _wrong_penalty(forced_eos_token_id=1),
    "sampling.temperature": _wrong_temperature,
    "sampling.top_k": _wrong_cut("top_k", lambda k: k + 1),
    "sampling.top_p": _wrong_cut("top_p", lambda p: p * 0.9),
    "sampling.min_p": _wrong_cut("min_p", lambda p: p / 2),
    "sampling.typical_p": _wrong_cut("typical_p", lambda p: p * 0.9),
    "sampling.epsilon_cutoff": _wrong_cut("epsilon_cutoff", lambda p: p / 2),
    "sampling.eta_cutoff": _wrong_cut("eta_cutoff", lambda p: p / 2),
    "sampling.order": _wrong_order,
    "sampling.together": _penalties_after_cuts,
    "sampling.greedy": _last_of_ties,
    "sampling.draw": _no_seed,
    "tokenizer.stream": _losing_stream,
    "stopping.text": _specials_shown,
    "stopping.max_tokens": _one_token_more,
    "sampling.history": _answer_alone,
    "stopping.eos": _first_end_only,
    "stopping.stop_ids": _stop_ids_forgotten,
    "stopping.stop_text": _held_text_lost,
    "stopping.min_tokens": _stop_text_at_once,
    "stopping.reason": _always_stops,
    "stopping.usage": _counts_the_prompt_alone,
    "logprobs": _neighbours_logprob,
}


def test_every_stage_has_a_broken_twin() -> None:
    assert tuple(TWINS) == STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_a_broken_twin_is_blamed_on_its_stage_alone(stage: str, monkeypatch: Patch) -> None:
    """Each stage is given the reference's input, so what it does wrong is its own."""
    TWINS[stage](monkeypatch)
    assert stages() == {stage}


def test_wrong_shares_are_blamed_on_the_draw(monkeypatch: Patch) -> None:
    _neighbours_draw(monkeypatch)
    assert stages() == {"sampling.draw"}


def test_faults_of_several_stages_are_all_blamed(monkeypatch: Patch) -> None:
    """Unless one rests on the other: what is drawn of wrong cuts says nothing of the draw."""
    told = ("sampling.top_k", "sampling.min_p", "stopping.eos", "logprobs")
    for stage in (*told, "sampling.draw"):
        TWINS[stage](monkeypatch)
    assert stages() == set(told)


def test_findings_come_in_the_order_of_the_stages(monkeypatch: Patch) -> None:
    for stage in ("logprobs", "stopping.usage", "sampling.top_p"):
        TWINS[stage](monkeypatch)
    found = [STAGES.index(found.stage) for found in check_decisions(GOLDEN)]
    assert found == sorted(found)
    assert len(set(found)) == 3


def test_a_stage_that_raises_has_answered_with_its_error(monkeypatch: Patch) -> None:
    def raises(logits: Tensor, k: int) -> Tensor:
        raise ZeroDivisionError("no tokens")

    monkeypatch.setattr(processors, "top_k", raises)
    (first, *_) = check_decisions(GOLDEN)
    assert first.stage == "sampling.top_k"
    assert first.got == "ZeroDivisionError('no tokens')"


# -- what the comparison itself can and cannot see -------------------------------------------------


@pytest.mark.parametrize("n", range(len(DRAWS)))
def test_the_draw_is_told_from_one_that_departs_as_far_as_the_golden_says(n: int) -> None:
    """Right shares pass 400 times; those of the stated departure fail in most of 400."""
    golden = json.loads((GOLDEN / "decisions.json").read_text())
    draws, shares = golden["draws"][n], _tensors()[f"draw/{n}"]
    generator = torch.Generator().manual_seed(n)
    best = int(shares.argmax())
    spread = ((1 - shares[best]) / shares[best]).sqrt()  # of w, when one share alone grows
    grown = shares[best] * (1 + draws["detects"] * spread)
    wrong = shares * (1 - grown) / (1 - shares[best])
    wrong[best] = grown
    assert float(((wrong - shares).square() / shares).nansum().sqrt()) == pytest.approx(
        draws["detects"], rel=1e-6
    )
    found = {}
    for name, drawn_from in (("right", shares), ("wrong", wrong)):
        samples = torch.multinomial(
            drawn_from.expand(400, -1), draws["draws"], replacement=True, generator=generator
        )
        p = [p_value(row, shares) for row in samples.tolist()]
        found[name] = sum(value < golden["false_alarm"] for value in p) / len(p)
    assert found["right"] == 0
    assert found["wrong"] >= 0.9, "the stated power is 95 %"


def test_a_token_without_a_share_is_never_explained_by_chance() -> None:
    assert p_value([0, 0, 1], torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)) == 0


def test_of_equal_logits_it_does_not_matter_which_are_kept() -> None:
    """The reference's sort decides between them, and no rule; how many are kept does matter."""
    row = torch.tensor([1.0, 3.0, 1.0, 2.0, 1.0])
    gone = -torch.inf
    first = settled(row, torch.tensor([0.1, 0.7, gone, 0.2, gone]))
    last = settled(row, torch.tensor([gone, 0.7, gone, 0.2, 0.1]))
    other = settled(row, torch.tensor([0.1, gone, gone, 0.2, 0.7]))
    assert torch.equal(first, last)
    assert not torch.equal(first, other)


# -- the golden itself -----------------------------------------------------------------------------


def _tensors() -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(GOLDEN / "decisions.safetensors")


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_the_golden_asks_what_the_case_says() -> None:
    """A case that is changed and not captured again would be judged by answers to other questions."""
    golden = json.loads((GOLDEN / "decisions.json").read_text(encoding="utf-8"))
    assert golden["settings"] == _as_json(SETTINGS)
    assert [e["stage"] for e in golden["endings"]] == [e.stage for e in ENDINGS]
    assert [asked["settings"] for asked in golden["logprobs"]] == _as_json(LOGPROBS)
    assert [f["settings"] for f in golden["followed"]] == _as_json([f.settings for f in FOLLOWED])
    assert [d["settings"] for d in golden["draws"]] == _as_json([d.settings for d in DRAWS])
    for situation in SITUATIONS:
        said = golden["situations"][situation.name]
        assert said["past"] == _as_json(dataclasses.asdict(situation.past))
    rows = _tensors()
    asked = (*ROWS, *(situation.row for situation in SITUATIONS))
    assert all(torch.equal(rows[row.name], row.logits()) for row in asked)
    vocabulary = json.loads((GOLDEN / "tokenizer.json").read_text(encoding="utf-8"))
    assert vocabulary == ascii_only()


@pytest.mark.parametrize("file", ["decisions.json", "decisions.safetensors", "tokenizer.json"])
def test_an_altered_file_is_named_and_the_command_said(copy: Path, file: str) -> None:
    damaged = bytearray((copy / file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (copy / file).write_bytes(damaged)
    with pytest.raises(
        ModelFileError, match=rf"{file} was altered.*lockstep golden capture decisions"
    ):
        run_check(golden=copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "decisions.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"decisions.safetensors is missing; make it again"):
        run_check(golden=copy)


def test_a_wrong_answer_is_blamed_on_its_stage_alone(copy: Path) -> None:
    """The check reads the golden's answers, and none of its own."""
    file = copy / "decisions.json"
    golden = json.loads(file.read_text(encoding="utf-8"))
    golden["greedy"]["wide"] += 1
    file.write_text(json.dumps(golden), encoding="utf-8")
    assert stages(copy) == {"sampling.greedy"}


def others(model: Path, device: str, dtype: str) -> list[Any]:
    """A factory of another engine, which is never asked for a candidate here."""
    raise AssertionError("the decisions golden holds no model to judge")


def test_another_engine_is_skipped_by_name() -> None:
    """The golden asks this project's own sampler: whose verdict would it be?"""
    with pytest.raises(LockstepError, match="nothing was checked: decisions: it asks this project"):
        run_check(golden=GOLDEN, candidate="tests.conformance.test_decisions:others")
