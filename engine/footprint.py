"""What a model and its cache will take of a device's memory, known before any of it is allocated.

Activations are not counted: they pass, and chunks of a prompt keep them small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from engine.backends import backend
from engine.cache import Cache, LayerCache, make_cache, store_named
from engine.decoder import Decoder
from engine.device import DTYPES, check_device, check_dtype
from engine.errors import RequestError
from engine.generate.loaded import STEP_TOKENS
from engine.memory import free_bytes, mebibytes
from engine.weights import open_checkpoint, parameter_bytes

MOST = 1 << 20  # sequences that a cache is planned for
_NOWHERE = torch.device("meta")


@dataclass(frozen=True)
class KindOfLayer:
    """The caches of `layers` layers of one window: the tokens that they keep, and their bytes.

    `per_token` is what one token takes in all of them together.
    """

    window: int | None
    layers: int
    tokens: int
    per_token: int
    bytes: int


@dataclass(frozen=True)
class Footprint:
    """Bytes of the weights and of the caches by kind of layer, and the bytes that are free."""

    weights: int
    kinds: tuple[KindOfLayer, ...]
    free: int

    @property
    def cache(self) -> int:
        return sum(kind.bytes for kind in self.kinds)

    @property
    def total(self) -> int:
        return self.weights + self.cache

    @property
    def fits(self) -> bool:
        return self.total <= self.free

    def to_dict(self) -> dict[str, Any]:
        """The document of `lockstep memory --json`, in bytes."""
        return {
            "weights": self.weights,
            "caches": [asdict(kind) for kind in self.kinds],
            "cache": self.cache,
            "total": self.total,
            "free": self.free,
            "fits": self.fits,
        }

    def __str__(self) -> str:
        """A small table."""
        lines = [("weights", mebibytes(self.weights))]
        for kind in self.kinds:
            window = "" if kind.window is None else f" with a window of {kind.window}"
            held = f"{kind.tokens:,} tokens of {kind.per_token:,} bytes"
            lines.append((f"{kind.layers} layers{window}, {held}", mebibytes(kind.bytes)))
        lines += [("together", mebibytes(self.total)), ("free", mebibytes(self.free))]
        left, right = (max(len(line[i]) for line in lines) for i in (0, 1))
        table = [f"{what:<{left}}  {size:>{right}}" for what, size in lines]
        return "\n".join([*table, "fits" if self.fits else "does not fit"])


def footprint(
    model: Path,
    tokens: int | None = None,
    batch: int = 1,
    *,
    cache: str = "ring",
    cache_dtype: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
) -> Footprint:
    """Of a model and a cache for `batch` sequences of `tokens` tokens, by default as many as it can read.

    Raises LockstepError where there is no such model, cache, dtype or device.
    """
    check_dtype(dtype)
    check_device(device)
    checkpoint = open_checkpoint(model)
    spec = checkpoint.spec
    tokens = spec.context if tokens is None else tokens
    if tokens < 1 or batch < 1:
        raise RequestError(f"at least 1 token of 1 sequence is kept, not {tokens} of {batch}")
    if batch > MOST:
        raise RequestError(f"{batch} sequences at once are too many; ask for {MOST} at most")
    decoder = Decoder(spec, backend(None, spec), _NOWHERE)
    made = make_cache(
        cache,
        spec,
        tokens,
        batch,
        STEP_TOKENS,
        DTYPES[dtype],
        _NOWHERE,
        store_named(cache_dtype),
    )
    return Footprint(
        parameter_bytes(decoder, checkpoint, DTYPES[dtype]),
        tuple(_kinds(made)),
        free_bytes(torch.device(device)),
    )


def _kinds(cache: Cache) -> Iterator[KindOfLayer]:
    layers = cast("Sequence[LayerCache]", cache.layers)
    for window, layout in cache.layouts.items():
        stores = [layer.stores.values() for layer in layers if layer.window == window]
        parts = [part for of_layer in stores for store in of_layer for part in store.parts]
        taken, tokens = sum(part.data.nbytes for part in parts), layout.banks * layout.slots
        yield KindOfLayer(window, len(stores), tokens, taken // tokens, taken)
