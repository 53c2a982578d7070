"""The plain cache: room for `capacity` tokens allocated up front, one tensor per layer and name.

New keys are written in place behind the old ones and read back by length. One tensor per layer, not
one for all: a single large tensor makes compiled decoding several times slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn

from engine.errors import RequestError
from engine.memory import free_bytes, mebibytes
from engine.probe import Probe
from engine.spec import ModelSpec


class LayerCache(nn.Module):
    """What one layer keeps of each token, [B, heads, capacity, width] per name, `length` of it filled.

    The names (`k` and `v`, or a latent and a key) are those of the spec, and of the probes.
    """

    def __init__(
        self,
        kept: Mapping[str, tuple[int, int]],
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.room = {
            name: torch.empty(batch, heads, capacity, width, dtype=dtype, device=device)
            for name, (heads, width) in kept.items()
        }
        self.length = 0
        for name in kept:
            self.add_module(name, Probe())

    def forward(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Appends [B, heads, T, width] under each name; gives all tokens so far, [B, heads, S, width]."""
        start, stop = self.length, self.length + new[0].shape[2]
        self.length = stop
        for held, tokens in zip(self.room.values(), new, strict=True):
            held[:, :, start:stop] = tokens
        return tuple(
            self.get_submodule(name)(held[:, :, :stop]) for name, held in self.room.items()
        )

    def clear(self) -> None:
        self.length = 0


class ContiguousCache(nn.Module):
    """The caches of all layers for `batch` rows that advance together."""

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.device = torch.device(device)
        needed, free = cache_bytes(spec, capacity, batch, dtype), free_bytes(self.device)
        if needed > free:
            raise RequestError(
                f"the KV cache for {capacity} tokens needs {mebibytes(needed)} "
                f"and {mebibytes(free)} are free on {self.device}; ask for fewer tokens"
            )
        self.layers = nn.ModuleList(
            LayerCache(layer.attn.cached, batch, capacity, dtype, self.device)
            for layer in spec.layers
        )
        self.length = 0

    def extend(self, n_new: int) -> tuple[Tensor, Tensor]:
        """Makes room for `n_new` tokens: their positions [T], and those of all keys then in view [S]."""
        start, stop = self.length, self.length + n_new
        if stop > self.capacity:
            raise RequestError(f"the KV cache holds {self.capacity} tokens, {stop} were asked for")
        self.length = stop
        held = torch.arange(stop, device=self.device)
        return held[start:], held

    def clear(self) -> None:
        """Forgets all tokens and keeps the room."""
        self.length = 0
        for layer in cast("Iterable[LayerCache]", self.layers):
            layer.clear()


def cache_bytes(spec: ModelSpec, capacity: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes kept of `capacity` tokens: over layers and names, B · heads · width · size of a number."""
    per_token = sum(
        heads * width for layer in spec.layers for heads, width in layer.attn.cached.values()
    )
    return per_token * capacity * batch * dtype.itemsize
