"""A paged cache driven by hand: requests that come, are computed and go, and the run without a cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache import PagedCache, Part, Room
from engine.decoder import Decoder
from tests.engine import tiny

BLOCK = 4
IDS = [i * 7 % 50 for i in range(19)]
CLOSE = (
    2e-5  # of the largest logit, in float32; the faults that these tests know of make 0.01 of it
)


def paged(model: Decoder, blocks: int = 12, block_size: int = BLOCK) -> PagedCache:
    return PagedCache(model.spec, blocks, block_size, poison=True)


@torch.inference_mode()
def run(
    model: Decoder, cache: PagedCache, room: Room, ids: Sequence[int], chunk: int | None = None
) -> Tensor:
    """Logits [T, V] of those `ids`, the whole sequence's, that the room does not hold yet."""
    rows = []
    while left := len(ids) - room.length:
        n = min(chunk or left, left)
        batch = torch.tensor([ids[room.length : room.length + n]])
        rows.append(model(batch, cache, [Part(room, n)])[0])
        cache.learn(room, ids)
    return torch.cat(rows)


def served(model: Decoder, cache: PagedCache, ids: Sequence[int]) -> Tensor:
    """The logits that are computed for a request of these ids, which comes and goes."""
    room = cache.admit(ids, len(ids))
    logits = run(model, cache, room, ids)
    cache.close(room)
    return logits


def naive(model: Decoder, ids: Sequence[int]) -> Tensor:
    return tiny.logits(model, ids)


def same(a: Tensor, b: Tensor) -> bool:
    """False where there is a NaN, too."""
    return a.shape == b.shape and bool((a - b).abs().max() < CLOSE * b.abs().max())
