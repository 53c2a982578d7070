"""Attention kernels behind one function: softmax(q kᵀ · scale, where visible) v.

Every backend takes q [B, H, T, D], k and v [B, K, S, D] and `visible` (bool, [T, S]), and returns
the context [B, H, T, D]. The probes come from the caller, so that each operation ends in one where it
is computed; a backend that never forms scores and weights leaves those two alone.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.backends import eager, sdpa
from engine.errors import RequestError
from engine.probe import Probe


class Backend(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor,
        scale: float,
        scores: Probe,
        weights: Probe,
        context: Probe,
    ) -> Tensor: ...


BACKENDS: dict[str, Backend] = {"eager": eager.attend, "sdpa": sdpa.attend}


def backend(name: str) -> Backend:
    """The kernel called `name`, or an error that lists those there are."""
    if name not in BACKENDS:
        raise RequestError(f"no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    return BACKENDS[name]
