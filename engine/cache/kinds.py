"""The kinds of caches by the names that a user gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from engine.cache.cache import Cache
from engine.cache.contiguous import ContiguousCache, RingCache
from engine.cache.paged import BLOCK_SIZE, PagedCache
from engine.cache.store import Int8Store, Store, StoreKind
from engine.errors import RequestError
from engine.spec import ModelSpec

#: "contiguous" keeps all tokens of a row, "ring" a window's where a layer has one, "paged" has blocks.
CACHES = ("contiguous", "ring", "paged")

#: How numbers are kept: in the engine's own dtype, or as int8.
STORES: Mapping[str | None, StoreKind] = {None: Store, "int8": Int8Store}


def make_cache(
    kind: str,
    spec: ModelSpec,
    capacity: int,
    batch: int,
    longest_pass: int | None,
    dtype: torch.dtype,
    device: torch.device,
    store: StoreKind = Store,
) -> Cache:
    """One for `batch` sequences of `capacity` tokens, which have up to `longest_pass` tokens in a pass.

    By default all of them. Raises RequestError where memory is short.
    """
    match kind:
        case "contiguous":
            return ContiguousCache(
                spec, capacity, batch=batch, dtype=dtype, device=device, store=store
            )
        case "ring":
            return RingCache(
                spec,
                capacity,
                batch=batch,
                longest_pass=longest_pass or capacity,
                dtype=dtype,
                device=device,
                store=store,
            )
        case "paged":
            blocks = batch * math.ceil(capacity / BLOCK_SIZE)
            return PagedCache(spec, blocks, dtype=dtype, device=device, store=store)
    raise _unknown(kind)


def check_cache(kind: str, tokens: int | None) -> None:
    """Raises RequestError unless there is such a cache, and unless `tokens`, a paged one's size, make sense."""
    if kind not in CACHES:
        raise _unknown(kind)
    if tokens is not None and kind != "paged":
        raise RequestError(
            f"cache_tokens is the size of a paged cache; a {kind} one is made to fit"
        )
    if tokens is not None and tokens < 1:
        raise RequestError(f"a paged cache must have room for at least 1 token, got {tokens}")


def store_named(cache_dtype: str | None) -> StoreKind:
    """The way to keep numbers that is called so; RequestError where there is none."""
    if cache_dtype not in STORES:
        raise RequestError(
            f"no cache dtype {cache_dtype!r}; there is int8, or none for the engine's own"
        )
    return STORES[cache_dtype]


def _unknown(kind: str) -> RequestError:
    return RequestError(f"no kind of cache {kind!r}; there are {', '.join(CACHES)}")
