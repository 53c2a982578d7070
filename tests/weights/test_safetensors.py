"""Folders in Hugging Face layout: one file, shards with an index, and everything that can be wrong."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelFileError
from engine.weights import open_checkpoint
from tests.weights import tiny

SHARD = "model-00002-of-00004.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.save_folder(tmp_path / "single", tiny.tensors())


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return tiny.save_shards(tmp_path / "sharded", tiny.tensors())


def same_model(one: Path, other: Path) -> bool:
    a, b = tiny.parameters(tiny.load(one)), tiny.parameters(tiny.load(other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_shards_hold_the_same_model_as_one_file(folder: Path, shards: Path) -> None:
    assert same_model(folder, shards)


def test_opening_describes_tensors_without_reading_them(shards: Path) -> None:
    checkpoint = open_checkpoint(shards)
    stored = checkpoint.tensors["model.layers.1.mlp.down_proj.weight"]
    assert stored.shape == (tiny.DIM, tiny.FFN)
    assert stored.dtype == "F32"
    assert stored.nbytes == 4 * tiny.DIM * tiny.FFN
    assert stored.file.parent == shards
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"F32"}
    assert checkpoint.generation_config is None


def test_generation_config_is_handed_on(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert open_checkpoint(folder).generation_config == {"eos_token_id": [2, 5]}


def test_an_index_may_name_model_safetensors_itself(folder: Path, shards: Path) -> None:
    """Some converters write an index even for a model of one file."""
    tiny.write_index(folder, dict.fromkeys(tiny.tensors(), "model.safetensors"))
    assert same_model(folder, shards)


# -- files that are missing, cut off, or lie -------------------------------------------------------


def _without_index_entry(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.norm.weight"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _drop_from_its_shard(folder: Path) -> None:
    held = load_file(folder / SHARD)
    del held["model.norm.weight"]
    save_file(held, folder / SHARD)


def _in_two_shards(folder: Path) -> None:
    other = folder / "model-00001-of-00004.safetensors"
    save_file(load_file(other) | {"model.norm.weight": torch.zeros(tiny.DIM)}, other)


def _cut(folder: Path) -> None:
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:-10])


def _index(weight_map: object) -> Callable[[Path], None]:
    return lambda folder: tiny.write_index(folder, weight_map)


def _index_text(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text) and None


SHARD_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "shard deleted": (
        lambda folder: (folder / SHARD).unlink(),
        f"lacks {SHARD}, named by model.safetensors.index.json; download",
    ),
    "shard cut off": (_cut, f"{SHARD} is truncated or damaged"),
    "name missing from the index": (
        _without_index_entry,
        f"{SHARD} holds model.norm.weight, which model.safetensors.index.json does not name",
    ),
    "tensor missing from its shard": (_drop_from_its_shard, f"{SHARD} lacks model.norm.weight"),
    "tensor in two shards": (
        _in_two_shards,
        f"holds model.norm.weight, which model.safetensors.index.json places in {SHARD}",
    ),
    "stale single file": (
        lambda folder: tiny.save_folder(folder, tiny.tensors()),
        "holds both model.safetensors and the shards",
    ),
    "index not JSON": (_index_text("{"), "index.json is not JSON"),
    "index too deep": (_index_text("[" * 100_000), "index.json is not JSON"),
    "index a list": (_index_text("[1]"), "must hold a JSON object, not a list"),
    "index without a map": (_index_text("{}"), "has no weight_map"),
    "empty map": (_index({}), "has no weight_map"),
    "map of another kind": (_index(["a"]), "has no weight_map"),
    "shard not a name": (_index({"a": 3}), "places a in 3, which is not the name"),
}


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_a_faulty_sharded_folder_is_refused_when_opened(shards: Path, fault: str) -> None:
    """An incomplete download must not load with whatever memory held."""
    damage, message = SHARD_FAULTS[fault]
    damage(shards)
    with pytest.raises(ModelFileError) as refusal:
        open_checkpoint(shards)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/outside.safetensors",
        "sub/inside.safetensors",
        "..\\outside.safetensors",
        "C:outside.safetensors",
        "a\0.safetensors",
        "..",
        "",
        "pytorch_model.bin",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder_or_to_a_pickle(shards: Path, shard: str) -> None:
    outside = shards.parent / "outside.safetensors"
    save_file({"model.norm.weight": torch.zeros(tiny.DIM)}, outside)
    tiny.write_index(shards, {"model.norm.weight": shard})
    with pytest.raises(ModelFileError, match=r"is not the name of a \.safetensors file"):
        open_checkpoint(shards)


def _header(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[bytes], bytes]:
    def lie(good: bytes) -> bytes:
        (n,) = struct.unpack("<Q", good[:8])
        header = json.loads(good[8 : 8 + n])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + good[8 + n :]

    return lie


FILE_LIES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "header cut off": lambda good: good[:40],
    "data cut off": lambda good: good[:-1],
    "data too long": lambda good: good + b"0",
    "header of 4 EiB": lambda good: struct.pack("<Q", 1 << 62) + good[8:],
    "header not JSON": lambda good: struct.pack("<Q", 8) + b"{broken}" + good[16:],
    "shape too large": _header(lambda h: h["model.norm.weight"].update(shape=[1 << 40])),
    "shape overflows": _header(lambda h: h["model.norm.weight"].update(shape=[1 << 62, 1 << 62])),
    "offset outside": _header(lambda h: h["model.norm.weight"].update(data_offsets=[0, 1 << 40])),
    "unknown dtype": _header(lambda h: h["model.norm.weight"].update(dtype="F3")),
}


@pytest.mark.parametrize("lie", FILE_LIES)
def test_a_damaged_file_is_one_sentence_that_names_it(folder: Path, lie: str) -> None:
    file = folder / "model.safetensors"
    good = file.read_bytes()
    file.unlink()
    file.write_bytes(FILE_LIES[lie](good))
    with pytest.raises(ModelFileError, match=r"model\.safetensors is truncated or damaged") as it:
        open_checkpoint(folder)
    assert len(str(it.value)) < 500


class _Bomb:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "m.pt", "m.pth"]
)
def test_a_pickle_is_refused_and_never_opened(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(
        ModelFileError, match=r"pickle checkpoints are not read.*convert"
    ) as refusal:
        open_checkpoint(folder)
    assert name in str(refusal.value)
    assert not (folder / "exploded").exists()


def test_safetensors_are_read_where_a_pickle_lies_beside_them(folder: Path, shards: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert same_model(folder, shards)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no config.json"),
        ({"model.gguf": "x"}, "has no config.json, so it is no model folder; to run model.gguf"),
        ({"config.json": json.dumps(tiny.CONFIG)}, "holds no weights"),
        (
            {"config.json": json.dumps(tiny.CONFIG), "model-00001-of-00002.safetensors": "x"},
            "holds model-00001-of-00002.safetensors but neither",
        ),
        ({"config.json": "{"}, "config.json is not JSON"),
        ({"config.json": "\udcff"}, "config.json is not UTF-8 text"),
        ({"config.json": "[]"}, "config.json must hold a JSON object, not a list"),
        ({"config.json": '{"model_type": "mamba"}'}, "architecture 'mamba' is not supported"),
        (
            {"config.json": json.dumps(tiny.CONFIG | {"sliding_window": 8})},
            "sliding_window is not understood",
        ),
    ],
)
def test_a_folder_that_is_no_model(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError) as refusal:
        open_checkpoint(tmp_path)
    assert message in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_a_path_that_is_not_there_or_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        open_checkpoint(tmp_path / "nothing")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ModelFileError, match=r"neither a model folder nor a \.gguf file"):
        open_checkpoint(tmp_path / "notes.txt")


def test_a_folder_of_symbolic_links_loads(folder: Path, shards: Path, tmp_path: Path) -> None:
    """The hub's own cache is such a folder: names that point at blobs elsewhere."""
    blobs = tmp_path / "blobs"
    shutil.move(shards, blobs)
    shards.mkdir()
    for blob in blobs.iterdir():
        (shards / blob.name).symlink_to(blob)
    assert same_model(folder, shards)
