"""Beam search: the engine finds transformers' answers, and what it is accused of is the right part of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from conformance.beams import STAGES, Asked, check_beams, judge, moves
from conformance.cases import Case
from conformance.cases.beams import BEAMS_CASES
from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine
from engine.cache import ContiguousCache, Room
from engine.errors import LockstepError
from engine.generate import beam
from engine.generate.beam import Lines, Search
from engine.generate.beam_params import BeamSearch
from engine.generate.request import Request

TINY = [case.name for case in BEAMS_CASES if isinstance(case.model, Case)]
LLAMA = REPOSITORY_GOLDENS / "beams-llama"
Patch = pytest.MonkeyPatch


@cache
def document(name: str) -> Any:
    return json.loads((REPOSITORY_GOLDENS / name / "beams.json").read_text(encoding="utf-8"))


@cache
def llama(cache: str = "ring") -> Engine:
    return Engine.load(LLAMA, cache=cache)


def stages() -> set[str]:
    return {found.stage for found in check_beams(llama(), LLAMA)}


@pytest.mark.parametrize("name", TINY)
def test_the_engine_finds_the_references_answers(name: str) -> None:
    report = run_check([str(REPOSITORY_GOLDENS / name)])
    assert [found for t in report.texts for found in t.findings] == []
    assert report.exit_status == 0


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_so_it_does_in_every_cache(cache: str) -> None:
    assert check_beams(llama(cache), LLAMA) == []


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("answers")  # one worker: the model fills half a gigabyte
def test_four_beams_of_a_real_model_give_the_references_three_answers(
    asset: Callable[[str], Path],
) -> None:
    engine = Engine.load(asset("smollm2-135m"))
    assert check_beams(engine, REPOSITORY_GOLDENS / "beams-smollm2-135m") == []


# -- what the goldens hold -------------------------------------------------------------------------


def test_the_goldens_meet_every_circumstance_of_a_search() -> None:
    for name in TINY:
        searches = document(name)["searches"]
        assert {met for search in searches for met in search["met"]} == {
            "an answer makes room",
            "ends at the limit",
            "ends beyond the beams",
            "ends within the beams",
            "gives up hope",
            "goes on in hope",
            "is full",
            "more ends than beams",
        }
        assert {len(s["params"]["stop_token_ids"]) for s in searches} == {0, 1, 2, 3, 6}


def test_no_choice_in_them_is_one_that_a_rounding_decides() -> None:
    for case in BEAMS_CASES:
        golden = document(case.name)
        assert golden["noise"] < 2e-5
        times = 100 if isinstance(case.model, Case) else 20
        assert min(s["margin"] for s in golden["searches"]) >= times * golden["noise"]
        assert len(golden["searches"]) == len(case.searches) * max(1, len(case.texts))


def test_they_are_small() -> None:
    for case in BEAMS_CASES:
        folder = REPOSITORY_GOLDENS / case.name
        assert sum(file.stat().st_size for file in folder.iterdir()) < 200 * 1024


# -- a broken twin for every stage -----------------------------------------------------------------


def _one_beam_less(patch: Patch) -> None:
    right = Search.push

    def push(self: Search, logits: Tensor) -> list[int]:
        parents = right(self, logits)
        self.running = self.running[: max(1, self.asked.beams - 1)]
        return parents[: len(self.running)]

    patch.setattr(Search, "push", push)


def _rooms_that_stay(patch: Patch) -> None:
    right = Lines._follow
    patch.setattr(Lines, "_follow", lambda self, parents: right(self, sorted(parents)))


def _other_scores(patch: Patch) -> None:
    right = Request.dictate
    patch.setattr(
        Request,
        "dictate",
        lambda self, tokens, entries, logprobs: right(self, tokens, entries, logprobs * 1.001),
    )


def _other_counts(patch: Patch) -> None:
    right = beam.serve

    def serve(request: Request, *how: Any) -> None:
        right(request, *how)
        request.prompt.pop()

    patch.setattr(beam, "serve", serve)


def _raises(patch: Patch) -> None:
    def score(self: BeamSearch, logprobs: float, length: int) -> float:
        raise ValueError("no score")

    patch.setattr(BeamSearch, "score", score)


BROKEN = {
    _one_beam_less: "beams.search",
    _rooms_that_stay: "beams.cache",
    _other_scores: "beams.score",
    _other_counts: "beams.answer",
    _raises: "beams.search",
}


def test_there_is_a_twin_for_every_stage() -> None:
    assert set(BROKEN.values()) == set(STAGES)


@pytest.mark.parametrize(("plant", "stage"), BROKEN.items(), ids=[twin.__name__ for twin in BROKEN])
def test_a_fault_is_blamed_on_its_own_stage(
    plant: Callable[[Patch], None], stage: str, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    assert stages() == {stage}


def test_a_copy_that_holds_other_numbers_is_the_caches_fault(monkeypatch: Patch) -> None:
    def fork(self: ContiguousCache, room: Room) -> Room:
        twin = self.open()
        twin.length, twin.read_as = room.length, room.read_as
        return twin

    monkeypatch.setattr(ContiguousCache, "fork", fork)
    assert stages() == {"beams.cache"}


# -- ties ------------------------------------------------------------------------------------------


def a_search() -> Asked:
    golden = document("beams-llama")
    return Asked.of(golden["searches"][3], golden["noise"])


def test_other_answers_are_a_fault_unless_a_choice_was_within_the_noise() -> None:
    asked = a_search()
    assert list(judge(llama(), asked)) == []
    other = dataclasses.replace(asked, tokens=[*reversed(asked.tokens)])
    (finding,) = judge(llama(), other)
    assert (finding.stage, finding.got) == ("beams.search", asked.tokens)
    assert list(judge(llama(), dataclasses.replace(other, margin=asked.noise))) == []


def test_a_score_may_be_off_as_far_as_its_tokens() -> None:
    asked = a_search()
    inside = [s + 0.9 * limit for s, limit in zip(asked.scores, asked.limits, strict=True)]
    assert list(judge(llama(), dataclasses.replace(asked, scores=inside))) == []
    outside = [s + 2.1 * limit for s, limit in zip(asked.scores, asked.limits, strict=True)]
    (finding,) = judge(llama(), dataclasses.replace(asked, scores=outside))
    assert finding.stage == "beams.score"


# -- a golden made again, and checks that it is not for --------------------------------------------


def test_a_golden_made_again_may_move_within_its_noise_and_has_the_same_answers() -> None:
    before = document("beams-llama")
    assert list(moves(before, before)) == []
    after = json.loads(json.dumps(before))
    after["searches"][3]["answers"][0]["score"] += 1e-7
    assert list(moves(before, after)) == []
    after["searches"][3]["answers"][0]["score"] += 1e-2
    after["searches"][4]["answers"][0]["token_ids"].append(1)
    after["searches"][5]["prompt"].append(1)
    said = [how.partition(" ")[0::2] for _, how in moves(before, after)]
    assert [how[1] for how in said][:2] == ["other scores", "other answers"]
    assert len(said) == 3
    del after["searches"][0]
    ((_, how),) = moves(before, after)
    assert how == f"holds {len(after['searches'])} searches, were {len(before['searches'])}"


def test_who_is_not_this_engine_and_another_dtype_are_not_judged() -> None:
    with pytest.raises(LockstepError, match="it asks this project's own beam search"):
        run_check([str(LLAMA)], candidate="conformance.int8_candidate:candidates")
    with pytest.raises(LockstepError, match="what float32 may miss, not bfloat16"):
        run_check([str(LLAMA)], dtype="bfloat16")
