"""What a checkpoint format offers the loader: tensors by name, described without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint: `shape` in torch order, `dtype` as its format spells it.

    `nbytes` is its size in the file, `file` the file that holds it.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: Path


class TensorSource(Protocol):
    """Named tensors of one checkpoint, whatever its format."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor on the CPU in `dtype`; mapped, not copied, where the file has that dtype."""
        ...
