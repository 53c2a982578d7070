"""Attention kernels behind one function: softmax(q kᵀ · scale, where visible) v.

Every backend takes q [B, H, T, D], k [B, K, S, D], v [B, K, S, D'] and the view, which says what each
query sees, and returns the context [B, H, T, D']. The last argument says how scores are formed and holds the probes, so
that each operation ends in one where it is computed; a backend that never forms scores and weights
leaves those two alone.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.backends import eager, sdpa
from engine.backends.scored import Scored
from engine.errors import RequestError
from engine.mask import View
from engine.spec import ModelSpec


class Backend(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor: ...


#: By name, from the slowest to the fastest.
BACKENDS: dict[str, Backend] = {"eager": eager.attend, "sdpa": sdpa.attend}


def supports(name: str, model: ModelSpec) -> bool:
    """Whether the kernel called `name` can form this model's scores: sdpa has no softcap and no sinks."""
    return name != "sdpa" or not any(
        layer.attn.softcap is not None or layer.attn.sinks for layer in model.layers
    )


def backend(name: str | None, model: ModelSpec) -> Backend:
    """The kernel called `name`, by default the fastest for `model`, or an error that lists what fits."""
    fitting = [known for known in BACKENDS if supports(known, model)]
    if name is None:
        name = fitting[-1]
    if name not in BACKENDS:
        raise RequestError(f"no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    if name not in fitting:
        raise RequestError(
            f"the attention backend {name} has no softcap and no sinks, which this model needs; "
            f"use {', '.join(fitting)}"
        )
    return BACKENDS[name]
