"""The batch-invariant mode: every token's numbers have the same bits, whoever is computed beside it.

What a sum's last bits hang on is the shape of the call that forms it. So shapes never change here: maps
with weights take rows in tiles of one height, attention takes a sequence alone, in tiles of queries of
one height and in tiles of keys that begin at fixed positions, and functions of single numbers take
pieces without a remainder, as torch computes what is left over of a vector register in another way.
Where fewer are there, zeros stand in. (He et al. 2025, Defeating Nondeterminism in LLM Inference.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.arithmetic import Arithmetic
from engine.backends.scored import Scored
from engine.backends.tiled import Tiled
from engine.linear import linear
from engine.mask import View
from engine.quantised import Weight

#: Rows of a product; queries and keys of a tile. See docs/measurements/batch_invariant.md.
ROWS, QUERIES, KEYS = 16, 16, 64
#: Numbers of a piece: fewer than torch shares out among threads, in whole vector registers.
PIECE, REGISTERS = 2**14, 64


class Invariant(Arithmetic):
    """In calls of one shape, whose sums have one order: rows in tiles, single numbers in pieces."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        tiles = F.pad(rows, (0, 0, 0, -len(rows) % ROWS)).split(ROWS)
        done = torch.cat([linear(tile, weight, bias) for tile in tiles])[: len(rows)]
        return done.view(*x.shape[:-1], -1)

    def each(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        flat = x.flatten()
        pieces = F.pad(flat, (0, -len(flat) % REGISTERS)).split(PIECE)
        return torch.cat([function(piece) for piece in pieces])[: len(flat)].view(x.shape)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        # With b in rows, MKL's bits hang on a row's place on some processors, where n is no multiple of 4.
        return a @ b.transpose(-1, -2).contiguous().transpose(-1, -2)


INVARIANT = Invariant()
_TILED = Tiled(QUERIES, KEYS, INVARIANT)


def attend(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    """The tiled backend, sequence by sequence, on tiles that no cut of a prompt and no cache moves."""
    alone = [_alone(q[b], k[b], v[b], view.row(b), attn) for b in range(len(q))]
    return attn.context(torch.cat(alone))


def _alone(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
    """The context [1, H, T, D'] of a sequence's queries [H, T, D], keys and values [K, S, D]."""
    T, S = q.shape[1], k.shape[1]
    # The positions of keys have no gaps: with so many slots before the first, tiles begin at
    # multiples of KEYS.
    before = int(view.k_pos[0, 0]) % KEYS
    queries, keys = (0, -T % QUERIES), (before, -(before + S) % KEYS)
    q_pos, k_pos = F.pad(view.q_pos, queries, value=-1), F.pad(view.k_pos, keys, value=-1)
    q, k, v = (F.pad(x, (0, 0, *by))[None] for x, by in ((q, queries), (k, keys), (v, keys)))
    return _TILED.mix(q, k, v, View(q_pos, k_pos, view.window, view.custom), attn)[:, :, :T]
