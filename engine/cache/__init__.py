"""Key/value caches. The caller owns one and passes it in; it knows the positions it holds."""

from engine.cache.contiguous import ContiguousCache, LayerCache

__all__ = ["ContiguousCache", "LayerCache"]
