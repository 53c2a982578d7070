"""A cache of blocks: a sequence takes one when it needs one, and equal beginnings share theirs.

Shared blocks are never written: who would do so gets a copy first. Source: Kwon et al. 2023
(PagedAttention), section 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.cache.blocks import Blocks, Pool
from engine.cache.cache import Cache
from engine.cache.prefixes import Node, Prefixes
from engine.cache.room import Part, Room
from engine.cache.store import Store, StoreKind
from engine.errors import CacheFullError, RequestError
from engine.rope import follows_length, regime
from engine.spec import ModelSpec

BLOCK_SIZE = 16

Regimes = tuple[int, ...]


@dataclass
class Story:
    """What is known of a room's tokens: their ids, and the nodes of the blocks that they fill.

    `regimes` are those of the ropes, in which all of its keys were turned; None before the first.
    """

    ids: list[int] = field(default_factory=list)
    path: list[Node] = field(default_factory=list)
    regimes: Regimes | None = None


class PagedCache(Cache):
    """Rooms of `block_size`-token blocks from a pool of `blocks`, in all layers alike.

    Of tokens that it is told (`learn`) it keeps the blocks when a room is closed, until others need the
    slots, those used least recently first, and gives them to sequences that begin alike (`admit`).
    `hits` and `misses` count the tokens that were found, or were not, `evictions` the blocks that were
    given up. `poison` fills free blocks with NaN, so that none of them is read unnoticed.
    """

    def __init__(
        self,
        spec: ModelSpec,
        blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        store: StoreKind = Store,
        poison: bool = False,
    ) -> None:
        if blocks < 1 or block_size < 1:
            raise RequestError(
                f"a paged KV cache needs blocks of at least one token, got {blocks} of {block_size}"
            )
        device = torch.device(device)
        self._blocks = Blocks(blocks, block_size, device)
        layouts = dict.fromkeys((layer.attn.window for layer in spec.layers), self._blocks)
        super().__init__(spec, layouts, f"{blocks} times {block_size} tokens", dtype, device, store)
        self.block_size = block_size
        self.capacity = blocks * block_size
        self.pool, self.prefixes = Pool(blocks), Prefixes(block_size)
        self.hits = self.misses = self.evictions = 0
        ropes = {layer.attn.rope for layer in spec.layers}
        self._ropes = [rope for rope in ropes if rope is not None and follows_length(rope)]
        self._stories: dict[Room, Story] = {}
        self._poison = poison
        for block in self.pool.free:
            self._spoil(block)

    # -- rooms -------------------------------------------------------------------------------------

    @property
    def tokens(self) -> int:
        return self.capacity

    def open(self, capacity: int | None = None) -> Room:
        """An empty room, which gets its blocks as it grows; any number of them may be open."""
        self._check_length(capacity or 0)
        room = Room()
        self.rooms.append(room)
        self._stories[room] = Story()
        return room

    def fork(self, room: Room) -> Room:
        """A second room with the same tokens, in the same blocks for as long as nobody writes there."""
        twin = self.open()
        twin.length, twin.read_as = room.length, room.read_as
        for block in room.blocks[: math.ceil(room.length / self.block_size)]:
            self._share(twin, block)
        self._stories.pop(twin)
        if story := self._stories.get(room):
            self._stories[twin] = Story(list(story.ids), list(story.path), story.regimes)
        return twin

    def admit(self, ids: Sequence[int], read_as: int, reuse: bool = True) -> Room:
        room = self.open(len(ids))
        room.read_as = read_as
        if reuse:
            self._reuse(room, ids[:-1])
        found = room.length
        try:
            self.reserve([Part(room, len(ids) - found)])
        except CacheFullError:
            self.close(room)
            raise
        self.hits += found
        self.misses += len(ids) - found
        return room

    def _reuse(self, room: Room, ids: Sequence[int]) -> None:
        """Takes over what is known of a new sequence's `ids`."""
        regimes = self._regimes(room.read_as or len(ids))
        path, n = self.prefixes.match(regimes, ids)
        for node in path:
            self._share(room, node.block)
        room.length = n
        self._stories[room] = Story(list(ids[:n]), path[: n // self.block_size], regimes)

    def close(self, room: Room) -> None:
        self.rooms.remove(room)
        story = self._stories.pop(room, None)
        if story is not None and (rest := self._unfiled(story)):
            self.prefixes.add(self._parent(story), rest, room.blocks[len(story.path)])
        self._cut(room, 0)

    def rewind(self, room: Room, length: int) -> None:
        super().rewind(room, length)
        if story := self._stories.get(room):
            del story.ids[length:], story.path[length // self.block_size :]
        self._cut(room, math.ceil(length / self.block_size))

    def _cut(self, room: Room, kept: int) -> None:
        """Gives up all but the first `kept` blocks of a room."""
        # The last first: of a sequence that nobody needs the end is given up before its beginning.
        while len(room.blocks) > kept:
            self._release(room.blocks.pop())

    # -- blocks ------------------------------------------------------------------------------------

    def needed(self, parts: Sequence[Part]) -> int:
        """How many blocks these tokens take; `pool.available` are there."""
        leaving: Counter[int] = Counter()
        n = 0
        for part in parts:
            room = part.room
            blocks = math.ceil((room.length + part.n) / self.block_size)
            n += max(0, blocks - len(room.blocks))
            block = self._next(room)
            if block is not None and self.pool.holders[block] - leaving[block] > 1:
                leaving[block] += 1
                n += 1
        return n

    def reserve(self, parts: Sequence[Part]) -> None:
        super().reserve(parts)
        if self.needed(parts) > self.pool.available:
            raise CacheFullError(
                f"{self.needed(parts)} more blocks of the KV cache are needed and "
                f"{self.pool.available} of {self.pool.n} can be had; finish other sequences first"
            )
        for part in parts:
            room = part.room
            block = self._next(room)
            if block is not None and self.pool.holders[block] > 1:
                self._copy(room)
            while len(room.blocks) * self.block_size < room.length + part.n:
                room.blocks.append(self._take())
        for part in parts:
            self._keep_known(part.room)

    def _next(self, room: Room) -> int | None:
        """The block that the room's next token goes into, if it has that one already."""
        i = room.length // self.block_size
        return room.blocks[i] if i < len(room.blocks) else None

    def _keep_known(self, room: Room) -> None:
        """Before known tokens of an earlier sequence are overwritten, the room gets a copy.

        Without a block to spare they are forgotten: a sequence for which there are blocks enough is not
        refused because another began alike.
        """
        block = self._next(room)
        if block is not None and self.prefixes.known(block) > room.length % self.block_size:
            if self.pool.available:
                self._copy(room)
            else:
                self.prefixes.forget(block)

    def _copy(self, room: Room) -> None:
        """Gives the room its own copy of the block that its next token goes into."""
        i = room.length // self.block_size
        shared, own = room.blocks[i], self._take()
        for store in self.stores():
            store.copy(self._blocks.slots_of(shared), self._blocks.slots_of(own))
        room.blocks[i] = own
        self._release(shared)

    def _share(self, room: Room, block: int) -> None:
        self.pool.hold(block)
        room.blocks.append(block)

    def _take(self) -> int:
        if not self.pool.free:
            block = self.pool.evict()
            self.prefixes.forget(block)
            self.evictions += 1
            self._spoil(block)
        return self.pool.take()

    def _release(self, block: int) -> None:
        if self.pool.release(block, keep=self.prefixes.known(block) > 0):
            self._spoil(block)

    def _spoil(self, block: int) -> None:
        if self._poison:
            # Whole numbers cannot be NaN; what they are multiplied by can.
            for store in self.stores():
                if store.data.is_floating_point():
                    store.data[:, :, self._blocks.slots_of(block)] = math.nan

    # -- what is known of tokens -------------------------------------------------------------------

    def learn(self, room: Room, ids: Sequence[int]) -> None:
        story = self._stories.get(room)
        if story is None:
            return
        story.ids.extend(ids[len(story.ids) : room.length])
        while len(rest := self._unfiled(story)) >= self.block_size:
            own = room.blocks[len(story.path)]
            node = self.prefixes.add(self._parent(story), rest[: self.block_size], own)
            story.path.append(node)
            if node.block != own:  # one that holds the same: then that one is enough
                self.pool.hold(node.block)
                room.blocks[len(story.path) - 1] = node.block
                self._release(own)

    def _unfiled(self, story: Story) -> tuple[int, ...]:
        """The tokens behind those whose blocks are nodes."""
        return tuple(story.ids[len(story.path) * self.block_size :])

    def _parent(self, story: Story) -> Node:
        return story.path[-1] if story.path else self.prefixes.roots[story.regimes]

    def _extended(self, parts: Sequence[Part], read_as: int | None) -> None:
        for part in parts:
            if (story := self._stories.get(part.room)) is None:
                continue
            n, floor = part.room.length, read_as or part.room.read_as or part.room.length
            first, last = (self._regimes(max(floor, at)) for at in (n - part.n + 1, n))
            if story.regimes is None:
                story.regimes = first
            # Keys of two kinds in one room belong to no tree.
            if not story.regimes == first == last:
                del self._stories[part.room]

    def _regimes(self, length: int) -> Regimes:
        return tuple(regime(rope, length) for rope in self._ropes)
