"""Checkpoints of any layout, without a family: named shapes, a table of verbs and a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import nn

from engine.families.family import Layout, Verb
from engine.spec import ModelSpec
from engine.weights import Checkpoint, load_parameters
from engine.weights.safetensors import SafetensorsFolder

Shapes = Mapping[str, tuple[int, ...]]


def decoder(shapes: Shapes) -> nn.Module:
    """A module with these parameters, on the meta device as a decoder's are."""
    root = nn.Module()
    for name, shape in shapes.items():
        owner = root
        *path, leaf = name.split(".")
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        empty = torch.empty(shape, device="meta")
        owner.register_parameter(leaf, nn.Parameter(empty, requires_grad=False))
    return root


def checkpoint(folder: Path, verbs: Mapping[str, Verb], **layout: Any) -> Checkpoint:
    """The tensors of a folder, laid out so; nothing but the loader's own fields is filled in."""
    return Checkpoint(
        path=folder,
        config={},
        generation_config=None,
        spec=cast("ModelSpec", None),
        layout=Layout(verbs, **layout),
        source=SafetensorsFolder(folder),
    )


def load(
    folder: Path,
    held: Mapping[str, torch.Tensor],
    verbs: Mapping[str, Verb],
    shapes: Shapes,
    dtype: torch.dtype = torch.float32,
    **layout: Any,
) -> dict[str, torch.Tensor]:
    """Writes `held`, loads it, and gives the parameters by name."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in held.items()}, folder / "model.safetensors"
    )
    model = decoder(shapes)
    load_parameters(model, checkpoint(folder, verbs, **layout), "cpu", dtype)
    return dict(model.named_parameters(remove_duplicate=False))


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
