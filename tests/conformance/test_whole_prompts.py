"""Models whose frequencies follow the tokens in view: their prompts are fed whole, and never cut."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.capsule import Capsule, Packer
from conformance.cases import Case
from conformance.check import run_check
from conformance.golden import Golden
from conformance.oracle.capture import capture_quick
from conformance.oracle.model import follows_length, load
from conformance.oracle.noise import ENSEMBLE, ensemble
from tests.conformance.tiny_families import PLAIN

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    config = PLAIN | {"max_position_embeddings": 16, "rope_parameters": DYNAMIC}
    config |= {"bos_token_id": None, "eos_token_id": None}
    case = Case("dynamic", "llama", config, seed=4, decode_tokens=3, whole_prompts=True)
    return capture_quick(case, tmp_path_factory.mktemp("dynamic"), None)


def test_such_a_golden_has_one_way_to_be_fed(dynamic: Golden, golden: Golden) -> None:
    assert dynamic.whole_prompts and not golden.whole_prompts
    assert dynamic.schedule_in(5) == dynamic.schedule == [21, 1, 1, 1]
    assert golden.schedule_in(5)[:5] == [5, 5, 5, 5, 1]


class OfEveryAttention:
    """What the ensemble asks a model for."""

    _supports_sdpa = True
    config = SimpleNamespace()


def test_its_noise_is_that_of_whole_prompts(dynamic: Golden, golden: Golden) -> None:
    chunked = [variant for variant in ENSEMBLE if variant.chunk]
    assert chunked
    assert ensemble(golden, OfEveryAttention()) == list(ENSEMBLE)
    assert ensemble(dynamic, OfEveryAttention()) == [v for v in ENSEMBLE if v not in chunked]


def test_models_that_are_asked_live_say_so_themselves(dynamic: Golden, golden: Golden) -> None:
    assert follows_length(load(dynamic.folder, torch.float32).config)
    assert not follows_length(load(golden.folder, torch.float32).config)
    assert not follows_length(SimpleNamespace(model_type="gpt2"))
    two = {"full_attention": {"rope_type": "linear"}, "sliding_attention": {}}
    assert not follows_length(SimpleNamespace(rope_parameters=two))
    assert follows_length(SimpleNamespace(rope_parameters=two | {"full_attention": DYNAMIC}))


def test_the_engine_conforms_and_a_capsule_keeps_the_whole_prompt(
    dynamic: Golden, tmp_path: Path
) -> None:
    assert run_check([str(dynamic.folder)]).conforms
    packer = Packer(tmp_path / "capsule")
    report = run_check(
        [str(dynamic.folder)], candidate="tests.conformance.broken:late", packer=packer
    )
    assert not report.conforms
    about = json.loads((tmp_path / "capsule" / "capsule.json").read_text())
    assert about["schedule"] == dynamic.schedule
    assert Capsule(tmp_path / "capsule").failures("tests.conformance.broken:sound") == []
