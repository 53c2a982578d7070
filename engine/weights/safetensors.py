"""Tensors of a folder in Hugging Face layout: `model.safetensors`, or shards with an index.

Nothing else is read: a pickle can run code when it is opened, so those checkpoints are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelFileError
from engine.files import few, read_json
from engine.weights.tensors import StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The dtypes a parameter may be stored in. Anything else (integers, 8-bit floats) needs scales, which
# microscaled numbers, read as uint8, alone have.
_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_DTYPES = {**_FLOATS, "U8": torch.uint8}


class SafetensorsFolder:
    """A folder's tensors. Opening reads and checks headers alone."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[Path, Any] = {}
        index = folder / INDEX
        if index.is_file():
            located = self._sharded(folder, index)
        elif (folder / SINGLE).is_file():
            located = dict.fromkeys(self._names(folder / SINGLE), folder / SINGLE)
        else:
            raise ModelFileError(_nothing_to_read(folder))
        self.tensors: Mapping[str, StoredTensor] = {
            name: self._describe(name, file) for name, file in sorted(located.items())
        }

    def stored(self, name: str, dtype: torch.dtype, *, kept: bool) -> torch.Tensor:
        held = self.tensors[name]
        is_dtype = _DTYPES.get(held.dtype) == dtype
        if not is_dtype and dtype == torch.uint8:
            raise ModelFileError(f"{held.file}: {name} is stored as {held.dtype}, not as U8")
        if not is_dtype and held.dtype not in _FLOATS:
            raise ModelFileError(
                f"{held.file}: {name} is stored as {held.dtype}; parameters are read from "
                f"{', '.join(_FLOATS)} only"
            )
        try:
            # A mapping of its own, which is given back with the tensor, so that converting a large
            # file does not pile up all of its pages beside the result.
            file = self._files[held.file] if kept and is_dtype else _opened(held.file)
            tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise _damaged(held.file, error) from error
        return tensor

    def _names(self, file: Path) -> list[str]:
        """Opens a file (checking its header against its size) and lists its tensors."""
        try:
            self._files[file] = _opened(file)
            names: list[str] = list(self._files[file].keys())
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise _damaged(file, error) from error
        return names

    def _describe(self, name: str, file: Path) -> StoredTensor:
        piece = self._files[file].get_slice(name)
        shape = tuple(piece.get_shape())
        dtype = str(piece.get_dtype())
        width = _DTYPES[dtype].itemsize if dtype in _DTYPES else 1
        return StoredTensor(shape, dtype, torch.Size(shape).numel() * width, file)

    def _sharded(self, folder: Path, index: Path) -> dict[str, Path]:
        """Where each tensor is, after comparing the index with what the shards hold."""
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{index} has no weight_map, so it names no shards")
        promised: dict[str, set[str]] = defaultdict(set)
        for name, shard in weight_map.items():
            if not isinstance(shard, str) or not _is_shard_name(shard):
                raise ModelFileError(
                    f"{index} places {name} in {shard!r}, which is not the name of a .safetensors "
                    "file in the same folder"
                )
            promised[shard].add(name)
        if (folder / SINGLE).is_file() and SINGLE not in promised:
            raise ModelFileError(
                f"{folder} holds both {SINGLE} and the shards of {INDEX}; remove the stale ones"
            )
        missing = sorted(shard for shard in promised if not (folder / shard).is_file())
        if missing:
            raise ModelFileError(
                f"{folder} lacks {few(missing)}, named by {INDEX}; download the model again"
            )
        for shard, names in sorted(promised.items()):
            held = set(self._names(folder / shard))
            if absent := sorted(names - held):
                raise ModelFileError(f"{folder / shard} lacks {few(absent)}, named by {INDEX}")
            if stale := sorted(held - names):
                raise ModelFileError(
                    f"{folder / shard} holds {few(stale)}, which {INDEX} "
                    + _whereabouts(weight_map.get(stale[0]))
                )
        return {name: folder / shard for name, shard in weight_map.items()}


def _opened(file: Path) -> Any:
    return safe_open(file, framework="pt")


def _whereabouts(shard: str | None) -> str:
    return f"places in {shard}" if shard else "does not name"


def _is_shard_name(name: str) -> bool:
    """Whether it is a bare file name: an index must not lead out of its folder."""
    return name.endswith(".safetensors") and not set(name) & set("/\\:\0")


def _nothing_to_read(folder: Path) -> str:
    found = {suffix: sorted(folder.glob(f"*{suffix}")) for suffix in (".bin", ".pt", ".pth")}
    pickles = [path.name for paths in found.values() for path in paths]
    if pickles:
        return (
            f"{folder} holds {few(pickles)}: pickle checkpoints are not read, because opening one "
            "can run code; convert it to safetensors"
        )
    if shards := sorted(path.name for path in folder.glob("*.safetensors")):
        return f"{folder} holds {few(shards)} but neither {SINGLE} nor {INDEX}"
    return f"{folder} holds no weights: neither {SINGLE} nor {INDEX}"


def _damaged(file: Path, error: Exception) -> ModelFileError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelFileError(f"{file} is truncated or damaged ({reason}); download it again")
