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


class Stored(Protocol):
    """Reads one tensor: `TensorSource.stored`."""

    def __call__(self, name: str, dtype: torch.dtype, *, kept: bool) -> torch.Tensor: ...


class TensorSource(Protocol):
    """Named tensors of one checkpoint, whatever its format."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def stored(self, name: str, dtype: torch.dtype, *, kept: bool) -> torch.Tensor:
        """The tensor on the CPU, in its own floating-point dtype or in `dtype`.

        uint8 is given where it is asked for, and integers are not otherwise. What has the dtype asked
        for is mapped, not copied. The memory of the pages read goes with the tensor, unless it is
        `kept` and needs no conversion.
        """
        ...
