"""The plain cache: room for `capacity` tokens allocated up front, one k and one v tensor per layer.

New keys are written in place behind the old ones and read back by length. One tensor per layer, not
one for all: a single large tensor makes compiled decoding several times slower.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.errors import RequestError
from engine.memory import free_bytes, mebibytes
from engine.probe import Probe
from engine.spec import ModelSpec


class LayerCache(nn.Module):
    """One layer's keys and values, [B, K, capacity, D] each, of which the first `length` are filled."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0
        self.k = Probe()
        self.v = Probe()

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends k and v [B, K, T, D]; gives all keys and values so far, [B, K, S, D]."""
        start, stop = self.length, self.length + k.shape[2]
        self.keys[:, :, start:stop] = k
        self.values[:, :, start:stop] = v
        self.length = stop
        return self.k(self.keys[:, :, :stop]), self.v(self.values[:, :, :stop])


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
            LayerCache(
                (batch, layer.attn.n_kv_heads, capacity, layer.attn.head_dim), dtype, self.device
            )
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


def cache_bytes(spec: ModelSpec, capacity: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values for `capacity` tokens: 2 · layers · B · K · D · size of a number."""
    per_token = sum(2 * layer.attn.n_kv_heads * layer.attn.head_dim for layer in spec.layers)
    return per_token * capacity * batch * dtype.itemsize
