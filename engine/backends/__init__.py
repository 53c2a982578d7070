"""Attention kernels behind one function: softmax(q kᵀ · scale, where visible) v.

Every backend takes q [B, H, T, D], k [B, K, S, D], v [B, K, S, D'] and the view, which says what each
query sees, and returns the context [B, H, T, D']. The last argument says how scores are formed and
holds the probes, so that each operation ends in one where it is computed; a backend that never forms
scores and weights leaves those two alone.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.backends import eager, sdpa, tiled
from engine.backends.scored import Scored
from engine.errors import RequestError
from engine.mask import PLAIN, Custom, View
from engine.spec import ModelSpec


class Backend(Protocol):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor: ...


#: By name, from the slowest to the fastest.
BACKENDS: dict[str, Backend] = {
    "tiled": tiled.attend,
    "eager": eager.attend,
    "sdpa": sdpa.attend,
}

#: What a kernel cannot make part of the scores, of what `_needs` may name.
LACKS: dict[str, tuple[str, ...]] = {"sdpa": sdpa.LACKS}


def _needs(model: ModelSpec, custom: Custom) -> set[str]:
    """What the scores of the model's layers take, besides scale, causal mask and window."""
    layers = [layer.attn for layer in model.layers]
    taken = {
        "softcap": any(attn.softcap is not None for attn in layers),
        "sinks": any(attn.sinks for attn in layers),
        "custom mask": custom.mask is not None,
        "custom bias": custom.bias is not None,
    }
    return {name for name, is_taken in taken.items() if is_taken}


def supports(name: str, model: ModelSpec, custom: Custom = PLAIN) -> bool:
    """Whether the kernel called `name` can form these scores."""
    return _needs(model, custom).isdisjoint(LACKS.get(name, ()))


def backend(name: str | None, model: ModelSpec, custom: Custom = PLAIN) -> Backend:
    """The kernel called `name`, by default the fastest that fits, or an error that lists what fits."""
    fitting = [known for known in BACKENDS if supports(known, model, custom)]
    if name is None:
        name = fitting[-1]
    if name not in BACKENDS:
        raise RequestError(f"no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    if name not in fitting:
        lacks = " and no ".join(LACKS[name])
        raise RequestError(
            f"the attention backend {name} has no {lacks}, which is needed here; "
            f"use {', '.join(fitting)}"
        )
    return BACKENDS[name]


def check_invariant(name: str | None) -> None:
    """Raises RequestError unless the batch-invariant mode can compute attention as asked."""
    if name not in (None, "tiled"):
        raise RequestError(
            "the batch-invariant mode computes attention in tiles of its own; "
            f"use the backend tiled or none, not {name}"
        )
