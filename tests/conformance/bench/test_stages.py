"""Stages: memory counted tensor by tensor, time told apart, and both engines' paths seen in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from conformance.bench.ours import Ours
from conformance.bench.stages import PASS_STAGES, Allocations, Clock, staged, watched
from conformance.bench.worker import Worker
from tests.engine import tiny

CPU = torch.device("cpu")
TEXT = "Hello world, again and again"
STAGES = {
    "load",
    "tokenize",
    "detokenize",
    *(f"{kind}.{stage}" for kind in ("prompt", "step") for stage in PASS_STAGES),
}


def test_the_most_that_was_alive_at_once_is_counted() -> None:
    """A thousand float32 are 4000 bytes; what was freed before the next is not there any more."""
    given = torch.ones(1000)
    with Allocations() as seen:
        seen.begin("outer")
        first = given + 1
        del first
        second = given + 2
        seen.begin("inner")
        third = torch.cat((second, given))
        given.add_(1)  # nothing new
        view = third[5:]
        seen.end("inner")
        del view, third
        seen.end("outer")
    assert seen.bytes == {"inner": 8000, "outer": 12000}


def test_a_stage_that_comes_again_has_the_most_of_its_calls() -> None:
    with Allocations() as seen:
        for size in (10, 1000, 10):
            seen.begin("stage")
            torch.ones(size)
            seen.end("stage")
    assert seen.bytes == {"stage": 4000}


def test_a_stage_within_another_is_part_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 10.0, 13.0, 20.0, 30.0, 31.0])
    monkeypatch.setattr("conformance.bench.stages.now", lambda device: next(ticks))
    clock = Clock(CPU)
    clock.begin("attention")
    clock.begin("cache")
    clock.end("cache")
    clock.end("attention")
    clock.begin("cache")
    clock.end("cache")
    assert clock.seconds == {"attention": 20, "cache": 4}


def test_seconds_of_layers_are_those_of_one_and_bytes_the_most_of_one() -> None:
    layers = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5)).requires_grad_(False)
    x = torch.ones(3, 10)

    def play(recorder: Clock | Allocations) -> None:
        stages = {"step.attention": list(layers), "step.whole pass": [layers]}
        with watched(recorder, stages):
            layers(x)

    found = staged(play, CPU, layers=2)
    assert found["step.attention"].bytes == 3 * 20 * 4
    assert found["step.whole pass"].bytes == 3 * 20 * 4 + 3 * 5 * 4
    whole, one = found["step.whole pass"].seconds, found["step.attention"].seconds
    assert 0 < 2 * one < whole
    assert not layers[0]._forward_hooks


def reference(speaking: Path, compiled: bool) -> dict[str, Any]:
    """What a worker of transformers is started with."""
    return {
        "model": str(speaking),
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "options": {"compiled": compiled},
    }


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.text_folder(tmp_path_factory.mktemp("speaking"), max_position_embeddings=128)


def test_this_engines_stages_are_all_there_and_fit_into_the_whole(speaking: Path) -> None:
    ours = Ours(str(speaking), {})
    found = ours.stages(TEXT)
    assert set(found) == STAGES
    assert all(figures.seconds > 0 for figures in found.values())
    spec = ours.engine.spec
    tokens = len(ours.engine.encode(TEXT))
    assert found["prompt.embedding"].bytes == tokens * spec.dim * 4
    assert found["step.embedding"].bytes == spec.dim * 4
    assert found["step.head"].bytes == spec.vocab_size * 4
    assert found["load"].bytes == sum(p.nbytes for p in ours.engine.decoder.parameters())
    for kind in ("prompt", "step"):
        parts = [found[f"{kind}.{stage}"].seconds for stage in ("embedding", "head")]
        parts += [
            len(spec.layers) * found[f"{kind}.{s}"].seconds for s in ("attention", "feed-forward")
        ]
        assert sum(parts) < found[f"{kind}.whole pass"].seconds
        assert found[f"{kind}.cache"].seconds < found[f"{kind}.attention"].seconds


def test_transformers_has_the_same_stages_with_tensors_of_the_same_sizes(speaking: Path) -> None:
    settings = reference(speaking, compiled=False)
    with Worker(
        "transformers", ("conformance.oracle", "timing"), settings, lambda _: None
    ) as worker:
        theirs = worker.ask("stages", text=TEXT)
        prompt = list(range(3, 12))
        answer = worker.ask("decode", prompts=[prompt, prompt[::-1]], n=5)
        first = worker.ask("prefill", prompt=prompt)["ids"]
        grown = worker.ask("growth", prompt=prompt, n=2)
        spoken = worker.ask("first", text=TEXT)
    own = Ours(str(speaking), {})
    assert set(theirs) == STAGES
    ours = own.stages(TEXT)
    for stage in ("load", "prompt.embedding", "step.embedding", "step.head"):
        assert theirs[stage]["bytes"] == ours[stage].bytes
    assert answer["ids"] == own.answer([prompt, prompt[::-1]], 6)
    assert first == [[own.read(prompt)]]
    assert len(grown["steps"]) == 2
    assert spoken["seconds"] > 0


def test_the_compiled_form_of_transformers_begins_each_answer_with_an_empty_cache(
    speaking: Path,
) -> None:
    """Its graph holds one cache for all answers; here it is run as it is written, which takes no minute."""
    settings, own = reference(speaking, compiled=True), Ours(str(speaking), {})
    prompts = [[3, 4, 5, 6], [9, 8, 7, 6], [3, 4, 5, 6]]
    uncompiled = {"TORCHDYNAMO_DISABLE": "1"}
    module = ("conformance.oracle", "timing")
    with Worker("transformers", module, settings, lambda _: None, uncompiled) as worker:
        answers = [worker.ask("decode", prompts=[prompt], n=6)["ids"] for prompt in prompts]
    assert answers == [own.answer([prompt], 7) for prompt in prompts]
