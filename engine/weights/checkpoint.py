"""Opens a model on disk, a Hugging Face folder or a .gguf file, without reading its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import ModelFileError
from engine.families import FAMILIES, read_spec
from engine.families.family import Family, Layout
from engine.files import read_json
from engine.gguf import open_gguf
from engine.spec import ModelSpec
from engine.weights.gguf import GGUFTensors, architecture, config_of
from engine.weights.safetensors import SafetensorsFolder
from engine.weights.tensors import StoredTensor, TensorSource


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk.

    `config` is a Hugging Face config.json, as stored or as a GGUF file's metadata says it;
    `generation_config` is None where the model has none (GGUF files never do). `layout` says how the
    checkpoint's tensors become the decoder's parameters.
    """

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    spec: ModelSpec
    layout: Layout
    source: TensorSource

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The checkpoint's own names, with shape, stored dtype and file; nothing is read for it."""
        return self.source.tensors

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """One tensor in `dtype`, rounded once from its stored values; a checkpoint may mix dtypes."""
        return self.source.stored(name, dtype, kept=True).to(dtype)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Raises ModelFileError for what is missing, damaged, unsafe or not understood."""
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(path)
    if path.exists():
        raise ModelFileError(f"{path} is neither a model folder nor a .gguf file")
    raise ModelFileError(f"{path} does not exist")


def _open_folder(folder: Path) -> Checkpoint:
    config_file = folder / "config.json"
    if not config_file.is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; to run {ggufs[0]}, name the file itself" if ggufs else ""
        raise ModelFileError(f"{folder} has no config.json, so it is no model folder{hint}")
    config = read_json(config_file)
    generation = folder / "generation_config.json"
    family, spec = _read_spec(config, str(folder))
    return Checkpoint(
        path=folder,
        config=config,
        generation_config=read_json(generation) if generation.is_file() else None,
        spec=spec,
        layout=family.layout(spec),
        source=SafetensorsFolder(folder),
    )


def _open_gguf(path: Path) -> Checkpoint:
    file = open_gguf(path)
    name = architecture(file)
    written = {f.gguf.architecture: (f.name, f.gguf) for f in FAMILIES.values() if f.gguf}
    if name not in written:
        known = ", ".join(written)
        raise ModelFileError(
            f"{path}: GGUF models of the architecture {name!r} are not supported (supported: {known})"
        )
    family, names = written[name]
    config = config_of(file, family, names)
    _, spec = _read_spec(config, f"{path}, its metadata read as a config")
    return Checkpoint(
        path=path,
        config=config,
        generation_config=None,
        spec=spec,
        layout=names.layout(spec),
        source=GGUFTensors(file),
    )


def _read_spec(config: Mapping[str, Any], where: str) -> tuple[Family, ModelSpec]:
    try:
        return read_spec(config)
    except ModelFileError as error:
        raise ModelFileError(f"{where}: {error}") from error
