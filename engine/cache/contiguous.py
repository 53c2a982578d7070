"""Caches of rows: each sequence has one, allocated up front, one tensor per layer and name.

One tensor per layer, not one for all: a single large tensor makes compiled decoding several times
slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache.cache import Cache, Layout, bucket
from engine.cache.room import Part, Room
from engine.cache.store import Place, Run, Scattered, Store, StoreKind
from engine.errors import CacheFullError, RequestError
from engine.spec import ModelSpec


class Rows(Layout):
    """A sequence's row of `slots` slots, in which the token at position p lies at p modulo `slots`.

    A row with a slot for every position never wraps around; a shorter one is a ring.
    """

    def first(self, room: Room) -> int:
        return max(0, room.length - self.slots)

    def place(self, rooms: Sequence[Room], first: Sequence[int], n: int) -> Place:
        row, start = rooms[0].row, first[0] % self.slots
        neighbours = all(room.row == row + b for b, room in enumerate(rooms))
        if neighbours and len(set(first)) == 1 and start + n <= self.slots:
            return Run(slice(row, row + len(rooms)), slice(start, start + n))
        return self.scattered(rooms, first, n)

    def scattered(self, rooms: Sequence[Room], first: Sequence[int], n: int) -> Scattered:
        last = torch.tensor([room.length - 1 for room in rooms])[:, None]
        positions = torch.tensor(first)[:, None] + torch.arange(n)
        slots = torch.minimum(positions, last) % self.slots
        banks = torch.tensor([room.row for room in rooms])
        return Scattered(banks.to(self.device), slots.to(self.device))

    def bucket(self, rooms: Sequence[Room]) -> tuple[Place, Tensor]:
        """In the order of slots: those of a ring that has wrapped around are a run like any other."""
        S = min(bucket(max(room.length for room in rooms)), self.slots)
        rows, slots = [room.row for room in rooms], torch.arange(S)
        newest = torch.tensor([room.length - 1 for room in rooms])[:, None]
        positions = (newest - (newest - slots) % self.slots).clamp(min=-1).to(self.device)
        if rows == list(range(len(rows))):
            return Run(slice(0, len(rows)), slice(0, S)), positions
        banks = torch.tensor(rows)
        place = Scattered(banks.to(self.device), slots.expand(len(rows), S).to(self.device))
        return place, positions


class ContiguousCache(Cache):
    """Rows for `batch` sequences of up to `capacity` tokens each, all of which are kept."""

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        *,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        store: StoreKind = Store,
    ) -> None:
        device = torch.device(device)
        layouts = {
            attn.window: Rows(batch, self._slots(attn.window, capacity), device)
            for attn in (layer.attn for layer in spec.layers)
        }
        tokens = f"{capacity} tokens" if batch == 1 else f"{batch} times {capacity} tokens"
        super().__init__(spec, layouts, tokens, dtype, device, store)
        self.capacity = capacity
        self._free = list(reversed(range(batch)))

    @property
    def tokens(self) -> int:
        return self.capacity * (len(self.rooms) + len(self._free))

    def _slots(self, window: int | None, capacity: int) -> int:
        """The slots of a row, in layers of that window."""
        return capacity

    def open(self, capacity: int | None = None) -> Room:
        self._check_length(capacity or 0)
        if not self._free:
            raise CacheFullError(f"all {len(self.rooms)} rows of the KV cache are taken")
        room = Room(self._free.pop())
        self.rooms.append(room)
        return room

    def fork(self, room: Room) -> Room:
        twin = self.open()
        twin.length, twin.read_as = room.length, room.read_as
        for store in self.stores():
            store.data[twin.row] = store.data[room.row]
        return twin

    def close(self, room: Room) -> None:
        self.rooms.remove(room)
        self._free.append(room.row)
        # A row is read beyond the end of a shorter sequence, and what stayed there might be infinite.
        for store in self.stores():
            store.data[room.row].zero_()


class RingCache(ContiguousCache):
    """Rows in which layers with a window keep no more than it needs; the others keep everything.

    A pass may have up to `longest_pass` tokens of a sequence. Its first token looks back over a window
    after its last one is written, so that a ring has window - 1 + longest_pass slots. For the same reason
    a whole pass can be taken back: what it wrote over is outside of the window of the next token.
    """

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        *,
        batch: int = 1,
        longest_pass: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        store: StoreKind = Store,
    ) -> None:
        self._longest_pass = longest_pass
        super().__init__(spec, capacity, batch=batch, dtype=dtype, device=device, store=store)

    @property
    def longest_pass(self) -> int:
        return self._longest_pass

    def _slots(self, window: int | None, capacity: int) -> int:
        return capacity if window is None else min(capacity, window - 1 + self.longest_pass)

    def reserve(self, parts: Sequence[Part]) -> None:
        super().reserve(parts)
        for part in parts:
            if part.n > self.longest_pass:
                raise RequestError(
                    f"the KV cache takes {self.longest_pass} tokens of a sequence at once, "
                    f"{part.n} were given"
                )
