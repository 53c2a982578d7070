"""What caches of all kinds share: rooms for sequences, and the plan of a forward pass.

A kind says where the token at a position of a room lies (`Layout`) and which rooms it can give. What a
layer keeps, and under which names, is the spec's; how a pass reads and writes is the same for all.
Shapes: B sequences, T new tokens of each, S keys in view of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn

from engine.cache.room import Part, Room
from engine.cache.store import Place, Scattered, Store, StoreKind
from engine.errors import RequestError
from engine.memory import free_bytes, give_back, mebibytes
from engine.probe import Probe
from engine.spec import ModelSpec

BUCKET = 256  # keys, at least, of a pass that is compiled


@dataclass(frozen=True)
class Reach:
    """Where a group's new tokens go and what it reads, in layers of one window."""

    write: Place
    read: Place
    k_pos: Tensor  # [B, S] the positions of what is read; -1 where a shorter sequence has nothing


@dataclass(frozen=True)
class Group:
    """Sequences that get equally many new tokens in a pass, side by side: B rows of T tokens.

    `start` is the place of the first in a packed pass [1, N] of several groups, None where the group is
    the whole pass [B, T].
    """

    q_pos: Tensor  # [B, T]
    read_as: Tensor  # [B, T] the length that scalings of ropes follow, see Room
    reaches: Mapping[int | None, Reach]
    start: int | None = None

    def of(self, packed: Tensor) -> Tensor:
        """Its share [B, heads, T, D] of [1, heads, N, D]."""
        if self.start is None:
            return packed
        B, T = self.q_pos.shape
        mine = packed[0, :, self.start : self.start + B * T]  # [heads, B * T, D]
        return mine.view(len(mine), B, T, -1).transpose(0, 1)


def packed(shares: Sequence[Tensor]) -> Tensor:
    """The shares [B, heads, T, D] of all groups of a pass, put together again: [1, heads, N, D]."""
    if len(shares) == 1:
        return shares[0]
    return torch.cat([share.transpose(0, 1).flatten(1, 2) for share in shares], dim=1)[None]


def in_row(values: Sequence[Tensor]) -> Tensor:
    """Each group's numbers [B, T] as they lie in the pass: [1, N] where there are several groups."""
    return values[0] if len(values) == 1 else torch.cat([v.flatten() for v in values])[None]


class Layout(ABC):
    """Where the tokens of layers of one window lie."""

    def __init__(self, banks: int, slots: int, device: torch.device) -> None:
        self.banks, self.slots, self.device = banks, slots, device

    def first(self, room: Room) -> int:
        """The lowest position that is still held."""
        return 0

    @abstractmethod
    def scattered(self, rooms: Sequence[Room], first: Sequence[int], n: int) -> Scattered:
        """The slots of `n` positions of each room, from its `first` on.

        What would lie behind a room's last token may be any slot that holds a finite number.
        """

    def place(self, rooms: Sequence[Room], first: Sequence[int], n: int) -> Place:
        """The same as a run, where it is one."""
        return self.scattered(rooms, first, n)

    def bucket(self, rooms: Sequence[Room]) -> tuple[Place, Tensor]:
        """All that the rooms hold and some more, so that there are few shapes; the positions [B, S].

        S is `bucket` of the longest. What is more has positions behind all queries, or -1.
        """
        S = min(bucket(max(room.length for room in rooms)), self.slots)
        positions = torch.arange(S, device=self.device).expand(len(rooms), S)
        return self.scattered(rooms, [0] * len(rooms), S), positions


def bucket(n: int) -> int:
    """The smallest of 256, 512, 1024 … that is not below n: the sizes that compiled passes have."""
    return max(BUCKET, 1 << (n - 1).bit_length())


class LayerCache(nn.Module):
    """What one layer keeps of each token, by the names of its spec, which are those of the probes.

    `kept` says of each name how many heads there are, and how wide they are.
    """

    def __init__(
        self,
        kept: Mapping[str, tuple[int, int]],
        window: int | None,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
        store: StoreKind,
    ) -> None:
        super().__init__()
        self.window = window
        self.stores = {
            name: store((layout.banks, heads, layout.slots, width), dtype, device)
            for name, (heads, width) in kept.items()
        }
        for name in kept:
            self.add_module(name, Probe())

    def forward(self, groups: Sequence[Group], *new: Tensor) -> list[tuple[Tensor, ...]]:
        """Keeps new [1, heads, N, width] under each name; gives each group's tokens so far.

        Those are [B, heads, S, width], name by name.
        """
        for group in groups:
            place = group.reaches[self.window].write
            for store, tokens in zip(self.stores.values(), new, strict=True):
                store.write(place, group.of(tokens))
        return [tuple(self._read(group.reaches[self.window].read)) for group in groups]

    def _read(self, place: Place) -> Iterator[Tensor]:
        for name, store in self.stores.items():
            yield self.get_submodule(name)(store.read(place))


class Cache(nn.Module, ABC):
    """The caches of all layers, and the rooms that are open in them."""

    layouts: Mapping[int | None, Layout]
    capacity: int  # the most tokens that one sequence can have

    def __init__(
        self,
        spec: ModelSpec,
        layouts: Mapping[int | None, Layout],
        tokens: str,
        dtype: torch.dtype,
        device: torch.device,
        store: StoreKind,
    ) -> None:
        """Allocates what `layouts` ask for, by window; `tokens` says how many those are, in words.

        Raises RequestError, before anything is allocated, where memory is short.
        """
        needed = cache_bytes(spec, layouts, dtype, store)
        if needed > free_bytes(device):
            give_back()
        if needed > (free := free_bytes(device)):
            raise RequestError(
                f"the KV cache for {tokens} needs {mebibytes(needed)} "
                f"and {mebibytes(free)} are free on {device}; ask for fewer tokens"
            )
        super().__init__()
        self.device, self.layouts = device, layouts
        self.layers = nn.ModuleList(
            LayerCache(attn.cached, attn.window, layouts[attn.window], dtype, device, store)
            for attn in (layer.attn for layer in spec.layers)
        )
        self.rooms: list[Room] = []

    @property
    def length(self) -> int:
        """The tokens of the longest sequence."""
        return max((room.length for room in self.rooms), default=0)

    def stores(self) -> Iterator[Store]:
        """All that is allocated, each a single tensor."""
        for layer in cast("Iterable[LayerCache]", self.layers):
            for store in layer.stores.values():
                yield from store.parts

    # -- what the kinds say ------------------------------------------------------------------------

    @property
    @abstractmethod
    def tokens(self) -> int:
        """How many tokens it can hold, of all sequences together."""

    @abstractmethod
    def open(self, capacity: int | None = None) -> Room:
        """A room for a sequence of up to `capacity` tokens, by default as many as one can have.

        Raises CacheFullError where none is left, RequestError where one cannot have so many.
        """

    @abstractmethod
    def fork(self, room: Room) -> Room:
        """A second room that holds the same tokens, and goes on by itself; CacheFullError as in `open`."""

    def admit(self, ids: Sequence[int], read_as: int, reuse: bool = True) -> Room:
        """A room, with a place for all of `ids`, for the sequence that begins with them.

        Where the cache keeps what others have computed, and `reuse` allows it, the room holds the
        first of them already, but never the last one, whose logits are wanted. CacheFullError as in
        `open`.
        """
        room = self.open(len(ids))
        room.read_as = read_as
        return room

    @property
    def longest_pass(self) -> int:
        """The most tokens that one sequence can have in a pass."""
        return self.capacity

    def rewind(self, room: Room, length: int) -> None:
        """Takes back all but the first `length` tokens of a room, which goes on as if they never came.

        As many as a pass may have, and no more, as a ring has lost what older ones stood for.
        """
        if not room.length - self.longest_pass <= length <= room.length:
            raise RequestError(
                f"the KV cache cannot go back to {length} of a sequence's {room.length} tokens"
            )
        room.length = length

    def learn(self, room: Room, ids: Sequence[int]) -> None:
        """Is told the sequence's tokens, of which the room holds the first, for those who come later."""

    @abstractmethod
    def close(self, room: Room) -> None:
        """Forgets the sequence and takes its room back."""

    def reserve(self, parts: Sequence[Part]) -> None:
        """Makes sure of slots for all of these tokens; changes nothing where it raises.

        That is CacheFullError where closing other rooms would help, RequestError where it would not.
        """
        for part in parts:
            self._check_length(part.room.length + part.n)

    def _check_length(self, tokens: int) -> None:
        if tokens > self.capacity:
            raise RequestError(
                f"the KV cache holds {self.capacity} tokens, {tokens} were asked for"
            )

    # -- the plan of a pass ------------------------------------------------------------------------

    def rows(self, shape: torch.Size) -> list[Part]:
        """T new tokens for each of the first B rooms, which are opened where there are fewer."""
        B, T = shape
        while len(self.rooms) < B:
            self.open()
        return [Part(room, T) for room in self.rooms[:B]]

    def extend(self, parts: Sequence[Part], read_as: int | None = None) -> tuple[Group, ...]:
        """Gives the new tokens their slots, and says what each of them can read then.

        `read_as` stands in for that of the rooms.
        """
        self.reserve(parts)
        alike = list(_alike(parts))
        groups, start = [], 0
        for n, rooms in alike:
            for room in rooms:
                room.length += n
            reaches = {w: self._reach(layout, rooms, n) for w, layout in self.layouts.items()}
            groups.append(
                self._group(rooms, n, reaches, None if len(alike) == 1 else start, read_as)
            )
            start += n * len(rooms)
        self._extended(parts, read_as)
        return tuple(groups)

    def extend_bucket(
        self, parts: Sequence[Part], rows: int, read_as: int | None = None
    ) -> tuple[Group]:
        """As `extend`, for parts of one token each, in tensors of few different shapes.

        There are `rows` rows: the last sequence stands in for those that are missing, so that it is
        computed, and written to its place, more than once. Keys are those of `Layout.bucket`.
        """
        self.reserve(parts)
        for part in parts:
            part.room.length += 1
        rooms = [part.room for part in parts]
        rooms += rooms[-1:] * (rows - len(rooms))
        last = [room.length - 1 for room in rooms]
        reaches = {
            w: Reach(layout.scattered(rooms, last, 1), *layout.bucket(rooms))
            for w, layout in self.layouts.items()
        }
        group = self._group(rooms, 1, reaches, None, read_as)
        self._extended(parts, read_as)
        return (group,)

    def _extended(self, parts: Sequence[Part], read_as: int | None) -> None:
        """Is told of the tokens that have just been given their slots."""

    def _group(
        self,
        rooms: Sequence[Room],
        n: int,
        reaches: Mapping[int | None, Reach],
        start: int | None,
        read_as: int | None,
    ) -> Group:
        """For rooms whose last `n` tokens are the new ones."""
        q_pos = self._positions([room.length - n for room in rooms], n)
        floor = self._column([read_as or room.read_as or room.length for room in rooms])
        return Group(q_pos, torch.maximum(floor, q_pos + 1), reaches, start)

    def _reach(self, layout: Layout, rooms: Sequence[Room], n: int) -> Reach:
        """For rooms whose last `n` tokens are the new ones."""
        old = [room.length - n for room in rooms]
        first = [layout.first(room) for room in rooms]
        held = [room.length - f for room, f in zip(rooms, first, strict=True)]
        k_pos = self._positions(first, max(held))
        if min(held) < max(held):
            k_pos = k_pos.masked_fill(k_pos >= self._column([room.length for room in rooms]), -1)
        return Reach(layout.place(rooms, old, n), layout.place(rooms, first, max(held)), k_pos)

    def _positions(self, first: Sequence[int], n: int) -> Tensor:
        """[B, n] the positions from each first one on."""
        return self._column(first) + torch.arange(n, device=self.device)

    def _column(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=self.device)[:, None]


def cache_bytes(
    spec: ModelSpec,
    layouts: Mapping[int | None, Layout],
    dtype: torch.dtype,
    store: StoreKind = Store,
) -> int:
    """Bytes of a cache: over layers and names, banks * slots * heads * what a row of numbers takes."""
    return sum(
        layouts[attn.window].banks
        * layouts[attn.window].slots
        * heads
        * store.row_bytes(width, dtype)
        for attn in (layer.attn for layer in spec.layers)
        for heads, width in attn.cached.values()
    )


def _alike(parts: Sequence[Part]) -> Iterator[tuple[int, list[Room]]]:
    """Neighbours that one kernel call can serve: one new token each, or as many after as many."""

    def kind(part: Part) -> tuple[int, int]:
        return part.n, 0 if part.n == 1 else part.room.length

    for (n, _), alike in groupby(parts, kind):
        yield n, [part.room for part in alike]
