"""Attention kernels behind one function: softmax(q kᵀ · scale, where visible) v.

Every kernel takes q [B, H, T, D], k [B, K, S, D], v [B, K, S, D'] and the view, which says what each
query sees, and returns the context [B, H, T, D']. The last argument says how scores are formed and
holds the probes, so that each operation ends in one where it is computed; a kernel that never forms
scores and weights leaves those two alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.backends import eager, flash, flex, sdpa, tiled
from engine.backends.backend import Backend, Kernel
from engine.errors import RequestError
from engine.mask import PLAIN, Custom
from engine.spec import ModelSpec

__all__ = ["BACKENDS", "Backend", "Kernel", "backend", "check_invariant", "supports"]

_MASK = frozenset({"custom mask", "custom bias"})
_SCORES = frozenset({"softcap", "sinks"})

BACKENDS: Mapping[str, Backend] = {
    known.name: known
    for known in (
        Backend("eager", eager.attend),
        Backend("tiled", tiled.attend),
        Backend("sdpa", sdpa.attend, _SCORES),
        Backend("flash", flash.attend, _SCORES | _MASK, flash.refusal),
        Backend("flex", flex.attend, refusal=flex.refusal),
    )
}

#: Of which the first that can be used is chosen: the fastest first, see docs/measurements/backends.md.
#: On a CPU torch's own choice, sdpa, is the kernel of flash, without the price of insisting on it.
_FASTEST: Mapping[str, tuple[str, ...]] = {
    "cpu": ("sdpa", "eager"),
    "cuda": ("flash", "sdpa", "eager"),
}


def _needs(model: ModelSpec, custom: Custom) -> frozenset[str]:
    """What the scores of the model's layers take, besides scale, causal mask and window."""
    layers = [layer.attn for layer in model.layers]
    taken = {
        "softcap": any(attn.softcap is not None for attn in layers),
        "sinks": any(attn.sinks for attn in layers),
        "custom mask": custom.mask is not None,
        "custom bias": custom.bias is not None,
    }
    return frozenset(name for name, is_taken in taken.items() if is_taken)


def supports(name: str, model: ModelSpec, custom: Custom = PLAIN) -> bool:
    """Whether the kernel called `name` can form these scores, wherever it runs."""
    return _needs(model, custom).isdisjoint(BACKENDS[name].lacks)


def backend(
    name: str | None,
    model: ModelSpec,
    custom: Custom = PLAIN,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Kernel:
    """The kernel called `name`, by default the fastest that fits, or an error that lists what fits."""
    if name is not None and name not in BACKENDS:
        raise RequestError(f"no attention backend {name!r}; there are {', '.join(BACKENDS)}")
    needed, device = _needs(model, custom), torch.device(device)
    reasons = {
        known.name: known.reason_against(needed, model, device, dtype)
        for known in BACKENDS.values()
    }
    if name is None:
        name = next(known for known in _FASTEST[device.type] if reasons[known] is None)
    elif reason := reasons[name]:
        fitting = [known for known, against in reasons.items() if against is None]
        raise RequestError(f"the attention backend {name} {reason}; use {', '.join(fitting)}")
    return BACKENDS[name].attend


def check_invariant(name: str | None) -> None:
    """Raises RequestError unless the batch-invariant mode can compute attention as asked."""
    if name not in (None, "tiled"):
        raise RequestError(
            "the batch-invariant mode computes attention in tiles of its own; "
            f"use the backend tiled or none, not {name}"
        )
