"""What a backend is: a kernel, what it cannot form, and where it cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.backends.scored import Scored
from engine.mask import View
from engine.spec import ModelSpec


class Kernel(Protocol):
    """q [B, H, T, D], k [B, K, S, D] and v [B, K, S, D'] to the context [B, H, T, D']."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor: ...


#: Why a kernel cannot be used for a model on a device in a dtype, as the end of a sentence about it.
Refusal = Callable[[ModelSpec, torch.device, torch.dtype], str | None]


def _never(model: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
    """Of kernels that run everywhere."""


@dataclass(frozen=True)
class Backend:
    """A kernel by its `name`; `lacks` is what it cannot make part of the scores.

    What the scores of a model take has these names: "softcap", "sinks", "custom mask", "custom bias".
    """

    name: str
    attend: Kernel
    lacks: frozenset[str] = frozenset()
    refusal: Refusal = _never

    def reason_against(
        self, needed: frozenset[str], model: ModelSpec, device: torch.device, dtype: torch.dtype
    ) -> str | None:
        """Why it cannot be used here, as the end of a sentence about it; None where it can."""
        if missing := sorted(needed & self.lacks):
            return f"has no {' and no '.join(missing)}, which is needed here"
        return self.refusal(model, device, dtype)
