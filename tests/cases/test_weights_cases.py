"""Public cases of the themes weights and rope that concern the llama family: F02, F04, F05, D08."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache import ContiguousCache
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.spec import Llama3Scaling
from engine.weights import open_checkpoint
from tests.weights import tiny

INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00004.safetensors"


def _logits(path: Path) -> torch.Tensor:
    decoder = tiny.load(path)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    cache = ContiguousCache(decoder.spec, capacity=8, device="cpu", dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = decoder(ids, cache)
    return logits


# -- F02: an incomplete download must not load -----------------------------------------------------


def test_f02_a_deleted_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.save_shards(tmp_path, tiny.tensors())
    (folder / SECOND).unlink()
    with pytest.raises(ModelFileError, match=SECOND):
        open_checkpoint(folder)


@pytest.mark.parametrize("shard", range(1, 5))
def test_f02_a_shard_ten_bytes_short_is_named(tmp_path: Path, shard: int) -> None:
    folder = tiny.save_shards(tmp_path, tiny.tensors())
    file = folder / f"model-{shard:05}-of-00004.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ModelFileError, match=file.name):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", list(tiny.tensors()))
def test_f02_any_name_removed_from_the_index_is_named(tmp_path: Path, name: str) -> None:
    folder = tiny.save_shards(tmp_path, tiny.tensors())
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    del weight_map[name]
    tiny.write_index(folder, weight_map)
    with pytest.raises(ModelFileError, match=name):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", list(tiny.tensors()))
def test_f02_any_tensor_left_out_of_a_single_file_is_named(tmp_path: Path, name: str) -> None:
    held = tiny.tensors()
    del held[name]
    with pytest.raises(ModelFileError, match=name):
        tiny.load(tiny.save_folder(tmp_path, held))


# -- F04: head_dim comes from the config, else from hidden size / heads ----------------------------


def test_f04_a_given_head_dim_is_used_for_shapes_and_for_the_scale(tmp_path: Path) -> None:
    """Here 24, where hidden size / heads would be 16."""
    decoder = tiny.load(tiny.save_folder(tmp_path, tiny.tensors()))
    attn = decoder.spec.layers[0].attn
    assert attn.head_dim == tiny.HEAD_DIM != tiny.DIM // tiny.HEADS
    assert attn.scale == tiny.HEAD_DIM**-0.5
    assert decoder.layers[0].attn.q.weight.shape == (tiny.HEADS * tiny.HEAD_DIM, tiny.DIM)
    assert decoder.layers[0].attn.out.weight.shape == (tiny.DIM, tiny.HEADS * tiny.HEAD_DIM)


@pytest.mark.parametrize("config", [{"head_dim": None}, {}], ids=["null", "absent"])
def test_f04_without_a_head_dim_it_is_derived(config: dict[str, Any]) -> None:
    given = {k: v for k, v in tiny.CONFIG.items() if k != "head_dim"} | config
    _, spec = read_spec(given)
    assert spec.layers[0].attn.head_dim == tiny.DIM // tiny.HEADS


@pytest.mark.parametrize("config", [{"head_dim": None}, {"head_dim": 16}, {"head_dim": 48}])
def test_f04_a_head_dim_that_the_tensors_contradict_is_refused(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = tiny.save_folder(tmp_path, tiny.tensors(), tiny.CONFIG | config)
    with pytest.raises(ModelFileError, match=r"wrong shapes: .*q_proj\.weight is \[96, 64\]"):
        tiny.load(folder)


# -- F05: biases are loaded where declared, and never dropped --------------------------------------

BIASED = tiny.CONFIG | {"attention_bias": True, "mlp_bias": True}


def test_f05_all_seven_biases_of_a_layer_are_loaded(tmp_path: Path) -> None:
    held = tiny.tensors(bias=True)
    got = tiny.parameters(tiny.load(tiny.save_folder(tmp_path, held, BIASED)))
    want = {k: v for k, v in tiny.expected(held).items() if k.endswith(".bias")}
    assert len(want) == 7 * tiny.LAYERS
    assert all(torch.equal(got[name], value) for name, value in want.items())


@pytest.mark.parametrize("part", tiny.LINEARS)
def test_f05_every_bias_changes_the_logits(tmp_path: Path, part: str) -> None:
    """Loaded and then not used would be no better than dropped."""
    held = tiny.tensors(bias=True)
    full = _logits(tiny.save_folder(tmp_path / "full", held, BIASED))
    without = held | {f"model.layers.0.{part}.bias": torch.zeros(tiny.LINEARS[part][0])}
    change = (_logits(tiny.save_folder(tmp_path / "without", without, BIASED)) - full).abs().max()
    assert change > 1e-3


@pytest.mark.parametrize("part", tiny.LINEARS)
def test_f05_a_bias_that_the_config_does_not_declare_is_refused(tmp_path: Path, part: str) -> None:
    name = f"model.layers.0.{part}.bias"
    held = tiny.tensors() | {name: torch.ones(tiny.LINEARS[part][0])}
    with pytest.raises(ModelFileError, match=f"no parameter for: {name}"):
        tiny.load(tiny.save_folder(tmp_path, held))


def test_f05_declared_biases_that_the_file_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing tensors: .*\.bias .* and 11 more"):
        tiny.load(tiny.save_folder(tmp_path, tiny.tensors(), BIASED))


def test_f05_rotary_frequencies_of_old_files_are_ignored(tmp_path: Path) -> None:
    """They follow from the config; and only they: the same name elsewhere is refused."""
    frequencies = torch.ones(tiny.HEAD_DIM // 2)
    held = tiny.tensors()
    for i in range(tiny.LAYERS):
        held[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = frequencies.clone()
    tiny.load(tiny.save_folder(tmp_path / "old", held))
    held["model.rotary_emb.inv_freqs"] = frequencies.clone()
    with pytest.raises(ModelFileError, match=r"no parameter for: model\.rotary_emb\.inv_freqs"):
        tiny.load(tiny.save_folder(tmp_path / "other", held))


# -- D08: rope parameters in every spelling --------------------------------------------------------

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
UNSCALED = [
    {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},  # transformers 5
    {"rope_parameters": {"rope_theta": 500000.0}},
    {"rope_theta": 500000.0},  # files on the hub
    {"rope_theta": 500000, "rope_scaling": None},
    {"rope_theta": 500000.0, "rope_scaling": {"type": "default"}},
]
SCALED = [
    {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3"} | LLAMA3},
    {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
    {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3"} | LLAMA3},
    {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "rope_type": "llama3"} | LLAMA3},
]


@pytest.mark.parametrize("spellings", [UNSCALED, SCALED], ids=["unscaled", "llama3"])
def test_d08_all_spellings_give_the_same_logits_and_theta_matters(
    tmp_path: Path, spellings: list[dict[str, Any]]
) -> None:
    held = tiny.tensors()
    outputs = [
        _logits(tiny.save_folder(tmp_path / str(n), held, tiny.CONFIG | spelling))
        for n, spelling in enumerate(spellings)
    ]
    assert all(torch.equal(outputs[0], other) for other in outputs[1:])
    default = _logits(tiny.save_folder(tmp_path / "default", held))
    assert (outputs[0] - default).abs().max() > 0.01


def test_d08_the_scaling_is_read_whole() -> None:
    for spelling in SCALED:
        _, spec = read_spec(tiny.CONFIG | spelling)
        rope = spec.layers[0].attn.rope
        assert rope.theta == 500000.0
        assert rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 32)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "dynamite", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "dynamite", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamite"}},
        {"rope_scaling": {"factor": 2.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
        {"rope_scaling": "linear"},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
    ],
)
def test_d08_an_unknown_scheme_or_key_is_an_error_never_a_silent_default(
    tmp_path: Path, spelling: dict[str, Any]
) -> None:
    folder = tiny.save_folder(tmp_path, tiny.tensors(), tiny.CONFIG | spelling)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_checkpoint(folder)
