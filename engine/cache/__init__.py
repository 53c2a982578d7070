"""Key/value caches. The caller owns one and passes it in; it knows the positions it holds.

A cache gives each sequence a room. Kinds differ in where a token lies (`Layout`): in a row of its own,
in a row that is a ring where a layer has a window, in blocks of one pool.
"""

from engine.cache.cache import Cache, Group, LayerCache, bucket, cache_bytes, in_row, packed
from engine.cache.contiguous import ContiguousCache, RingCache
from engine.cache.kinds import CACHES, check_cache, make_cache, store_named
from engine.cache.paged import BLOCK_SIZE, PagedCache
from engine.cache.prefixes import common
from engine.cache.room import Part, Room

__all__ = [
    "BLOCK_SIZE",
    "CACHES",
    "Cache",
    "ContiguousCache",
    "Group",
    "LayerCache",
    "PagedCache",
    "Part",
    "RingCache",
    "Room",
    "bucket",
    "cache_bytes",
    "check_cache",
    "common",
    "in_row",
    "make_cache",
    "packed",
    "store_named",
]
