"""Attention in tiles of queries and keys: no more than one tile's scores exist, whatever the length.

A softmax needs the largest score and the sum before the first weight. Here both run along: when a tile
has a larger score than those before it, what was added up until then is scaled down to it.
Source: Milakov and Gimelshein 2018; over tiles as in Dao et al. 2022 (FlashAttention), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.arithmetic import ORDINARY, Arithmetic
from engine.backends.scored import Scored
from engine.layers import softcap
from engine.mask import View


@dataclass(frozen=True)
class Tile:
    """Some places in a row of queries or keys, and the lowest and the highest position there."""

    places: slice
    first: int
    last: int


@dataclass(frozen=True)
class Tiled:
    """The kernel for tiles of so many `queries` and `keys`, in float32 whatever the dtype.

    The sum of weights is float64: it is as fast, and its error is one that all of a context shares.
    """

    queries: int = 128
    keys: int = 512
    arithmetic: Arithmetic = ORDINARY

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
        return attn.context(self.mix(q, k, v, view, attn))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
        """The context [B, H, T, D'], before it is shown."""
        context = q.new_empty(*q.shape[:3], v.shape[-1])
        tiles = list(_tiles(view.k_pos, self.keys))
        for queries in _tiles(view.q_pos, self.queries):
            places = queries.places
            seen = (
                (k[:, :, keys.places], v[:, :, keys.places], view.part(places, keys.places))
                for keys in tiles
                if _sees(queries, keys, view.window)
            )
            context[:, :, places] = self._tile(q[:, :, places], seen, attn)
        return context

    def _tile(self, q: Tensor, seen: Iterable[tuple[Tensor, Tensor, View]], attn: Scored) -> Tensor:
        """The context [B, H, m, D'] of m queries, from tiles of n keys and values."""
        each = self.arithmetic.each
        B, H, m, D = q.shape
        # A sink is like a key that was seen before all others, and has no value.
        if attn.sinks is None:
            highest = torch.full((B, H, m, 1), torch.finfo(torch.float32).min, device=q.device)
            total = torch.zeros_like(highest, dtype=torch.float64)
        else:
            highest = attn.sinks.float().view(-1, 1, 1).expand(B, H, m, 1)
            total = torch.ones_like(highest, dtype=torch.float64)
        context = torch.zeros_like(highest)  # of any width
        for k, v, view in seen:
            K = k.shape[1]
            grouped = q.float().reshape(B, K, H // K * m, D)  # as in `eager`
            products = (grouped @ k.float().transpose(-1, -2)).view(B, H, m, -1)
            s = softcap(products * attn.scale, attn.softcap, self.arithmetic)
            s = s if view.bias is None else s + view.bias
            s = s.masked_fill(~view.visible, -torch.inf)  # [B, H, m, n]
            higher = torch.maximum(highest, s.amax(-1, keepdim=True))
            w, kept = each(torch.exp, s - higher), each(torch.exp, highest - higher)
            mixed = self.arithmetic.product(w.view(B, K, H // K * m, -1), v.float())
            context = context * kept + mixed.view(B, H, m, -1)
            total = total * kept + w.sum(-1, keepdim=True, dtype=torch.float64)
            highest = higher
        return (context / total).to(q.dtype)


attend = Tiled()


def _tiles(positions: Tensor, size: int) -> Iterator[Tile]:
    """The tiles of [B, N] in which there is a token at all."""
    for start in range(0, positions.shape[1], size):
        places = slice(start, start + size)
        held = positions[:, places]
        held = held[held >= 0]
        if len(held):
            yield Tile(places, int(held.min()), int(held.max()))


def _sees(queries: Tile, keys: Tile, window: int | None) -> bool:
    """Whether any of the queries might see any of the keys."""
    recent = window is None or keys.last > queries.first - window
    return keys.first <= queries.last and recent
