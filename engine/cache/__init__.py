"""Key/value caches. The caller owns one and passes it in; it knows the positions it holds.

A cache gives each sequence a room. Kinds differ in where a token lies (`Layout`): in a row of its own,
in a row that is a ring where a layer has a window.
"""

from engine.cache.cache import Cache, Group, LayerCache, cache_bytes, in_row, packed
from engine.cache.contiguous import ContiguousCache, RingCache
from engine.cache.room import Part, Room

__all__ = [
    "Cache",
    "ContiguousCache",
    "Group",
    "LayerCache",
    "Part",
    "RingCache",
    "Room",
    "cache_bytes",
    "in_row",
    "packed",
]
