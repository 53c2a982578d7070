"""Blocks of equal size out of one pool: who holds which, and where the tokens of a room lie in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.cache.cache import Layout
from engine.cache.room import Room
from engine.cache.store import Scattered


class Blocks(Layout):
    """One bank of `n` blocks of `size` slots: the token at position p is in its room's block p // size."""

    def __init__(self, n: int, size: int, device: torch.device) -> None:
        super().__init__(1, n * size, device)
        self.size = size

    def scattered(self, rooms: Sequence[Room], first: Sequence[int], n: int) -> Scattered:
        longest = max(len(room.blocks) for room in rooms)
        table = torch.tensor([r.blocks + [0] * (longest - len(r.blocks)) for r in rooms])
        # Behind a room's last token that token stands in: other slots may never have been written.
        last = torch.tensor([room.length - 1 for room in rooms])[:, None]
        positions = torch.minimum(torch.tensor(first)[:, None] + torch.arange(n), last)
        slots = table.gather(1, positions // self.size) * self.size + positions % self.size
        banks = torch.zeros(len(rooms), dtype=torch.int64, device=self.device)
        return Scattered(banks, slots.to(self.device))

    def slots_of(self, block: int) -> slice:
        return slice(block * self.size, (block + 1) * self.size)


class Pool:
    """Who holds which of `n` blocks: each is free, or held by rooms, or idle.

    An idle block is held by nobody, but what it holds is worth keeping until its slots are needed.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.holders = [0] * n
        self.free = list(reversed(range(n)))
        self._idle: dict[int, None] = {}  # in the order in which they became so

    @property
    def available(self) -> int:
        """How many can be had, idle ones among them."""
        return len(self.free) + len(self._idle)

    def take(self) -> int:
        """A free block for one holder."""
        block = self.free.pop()
        self.holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One holder more."""
        self._idle.pop(block, None)
        self.holders[block] += 1

    def release(self, block: int, keep: bool) -> bool:
        """One holder fewer; says whether the block is free now. Without holders it is idle if to `keep`."""
        self.holders[block] -= 1
        if self.holders[block]:
            return False
        if keep:
            self._idle[block] = None
        else:
            self.free.append(block)
        return not keep

    def evict(self) -> int:
        """Frees, and names, the block that has been idle for longest."""
        block = next(iter(self._idle))
        del self._idle[block]
        self.free.append(block)
        return block
