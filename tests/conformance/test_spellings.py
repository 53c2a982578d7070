"""Both spellings of every family's checkpoints: transformers reads a respelled one as the same model,
and so does the engine; a key that nobody knows is named.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.cases import Case
from conformance.oracle.model import Oracle, load
from conformance.oracle.tiny import tiny_checkpoint
from conformance.strategies import FAMILIES, RESPELLINGS, respell
from engine import Engine
from engine.errors import ModelFileError
from tests.conformance.tiny_families import CONFIGS

IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2])

LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
SOME_WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
#: What is written in two ways, beside what CONFIGS has: scaled frequencies, and windows by a rule.
WRITTEN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gemma3_text": {},
    "phi3": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        }
    },
    "gpt_oss": {},
    "qwen2": {"rope_parameters": LINEAR} | SOME_WINDOWS,
    "qwen3": {"rope_parameters": LINEAR} | SOME_WINDOWS,
    "smollm3": {"rope_parameters": LINEAR, "use_sliding_window": True, "sliding_window": 4},
    "gemma2": {"rope_parameters": LINEAR, "tie_word_embeddings": True},
}


def written(family: str, folder: Path) -> Path:
    """The family's checkpoint as transformers 5 writes it."""
    config = CONFIGS[family] | WRITTEN.get(family, {"rope_parameters": LINEAR})
    tiny_checkpoint(Case("respelled", family, config, seed=1), folder / "written")
    return folder / "written"


def reference_logits(folder: Path) -> torch.Tensor:
    shown: list[torch.Tensor] = []

    def tap(probe: str, value: torch.Tensor) -> torch.Tensor:
        if probe == "logits":
            shown.append(value.clone())
        return value

    oracle = Oracle(load(folder, torch.float32))
    oracle.begin(len(IDS))
    oracle.step(IDS, tap)
    return shown[0]


def engine_logits(folder: Path) -> torch.Tensor:
    engine = Engine.load(folder)
    with torch.inference_mode():
        logits: torch.Tensor = engine.decoder(IDS[None], engine.new_cache(len(IDS)))
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_in_the_hub_s_style_is_the_same_model(family: str, tmp_path: Path) -> None:
    first = written(family, tmp_path)
    again = tmp_path / "again"
    respell(first, again, RESPELLINGS)
    config = json.loads((again / "config.json").read_text())
    assert "torch_dtype" in config and "rope_parameters" not in config
    expected = reference_logits(first)
    assert torch.equal(reference_logits(again), expected), "the respelling says something else"
    assert torch.equal(engine_logits(again), engine_logits(first))
    assert torch.allclose(engine_logits(first), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_key_is_named_in_either_spelling(family: str, tmp_path: Path) -> None:
    respell(written(family, tmp_path), tmp_path / "again", RESPELLINGS)
    for folder in (tmp_path / "written", tmp_path / "again"):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"warp_factor": 9}))
        with pytest.raises(ModelFileError, match="warp_factor"):
            Engine.load(folder)


def test_every_respelling_changes_some_checkpoint(tmp_path: Path) -> None:
    changed = set()
    for family in ("gpt2", "llama", "gemma2", "mixtral"):
        first = written(family, tmp_path / family)
        before = _respelled(first, ["rope_theta and rope_scaling"])
        for name in RESPELLINGS:
            if _respelled(first, ["rope_theta and rope_scaling", name]) != before:
                changed.add(name)
    assert changed | {"rope_theta and rope_scaling"} == set(RESPELLINGS)


def _respelled(source: Path, names: list[str]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "again"
        respell(source, target, names)
        return {path.name: path.read_bytes() for path in target.iterdir()}
