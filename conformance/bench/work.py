"""What a model has to do for a token: bytes to read and operations to form, counted from its shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from engine import spec
from engine.backends import backend
from engine.decoder import Decoder
from engine.device import DTYPES
from engine.weights import open_checkpoint


@dataclass(frozen=True)
class LayerWork:
    """Of a layer: bytes that a cache keeps of a token, its window, and operations per query and key."""

    kept: int
    window: int | None
    per_key: int

    def seen(self, length: int) -> int:
        """Keys that the last of `length` tokens sees."""
        return length if self.window is None else min(length, self.window)


@dataclass(frozen=True)
class Work:
    """`weights`: bytes that a step reads at least; `per_token`: operations of matrices; `head` of the last one.

    Of experts those count that one token has.
    """

    parameters: int
    weights: int
    per_token: int
    head: int
    layers: tuple[LayerWork, ...]

    def decode(self, batch: int, length: int) -> tuple[int, int]:
        """Bytes and operations of one step of `batch` sequences of `length` tokens, the new one included."""
        keys = [layer.seen(length) for layer in self.layers]
        kept = sum(layer.kept * n for layer, n in zip(self.layers, keys, strict=True))
        scored = sum(layer.per_key * n for layer, n in zip(self.layers, keys, strict=True))
        return self.weights + batch * kept, batch * (self.per_token + self.head + scored)

    def prefill(self, length: int) -> tuple[int, int]:
        """Bytes and operations of reading `length` tokens, with the last one's logits."""
        scored = sum(
            layer.per_key * _pairs(length, layer.window or length) for layer in self.layers
        )
        return self.weights, length * self.per_token + self.head + scored

    @property
    def per_length(self) -> int:
        """Bytes that a step reads more for each token of its context, while no window is full."""
        return sum(layer.kept for layer in self.layers)


def _pairs(length: int, window: int) -> int:
    """Queries and the keys that they see, of `length` tokens."""
    full = min(length, window)
    return full * (full + 1) // 2 + (length - full) * full


def work(model: Path, dtype: str) -> Work:
    """Of a model in `dtype`; LockstepError where it cannot be opened."""
    checkpoint = open_checkpoint(model)
    shape = checkpoint.spec
    decoder = Decoder(shape, backend(None, shape), torch.device("meta"))
    itemsize = DTYPES[dtype].itemsize
    sizes = {name: p.numel() for name, p in decoder.named_parameters()}
    looked_up = sum(n for name, n in sizes.items() if name.startswith("embed."))
    head = sizes["logits.weight"]
    # Of experts a token has some; a matrix is what has two sides, and experts have a third.
    active = {name: _active(name, n, decoder) for name, n in sizes.items()}
    matrices = sum(
        active[name]
        for name, p in decoder.named_parameters()
        if p.ndim > 1 and not name.startswith(("embed.", "logits."))
    )
    return Work(
        parameters=sum(sizes.values()) - (head if shape.tied_head else 0),
        weights=(sum(active.values()) - looked_up) * itemsize,
        per_token=2 * matrices,
        head=2 * head,
        layers=tuple(_layer(layer.attn, itemsize) for layer in shape.layers),
    )


def _active(name: str, numbers: int, decoder: Decoder) -> int:
    """How many numbers of a parameter one token is multiplied with."""
    if ".experts." not in name:
        return numbers
    moe = decoder.spec.layers[int(name.split(".")[1])].mlp
    assert isinstance(moe, spec.MoE)
    return numbers * moe.top_k // moe.n_experts


def _layer(attn: spec.Attention, itemsize: int) -> LayerWork:
    kept = sum(prod(sizes) for sizes in attn.cached.values()) * itemsize
    if isinstance(attn, spec.LatentAttention):
        widths = attn.nope_dim + attn.rope_dim + attn.v_dim
    else:
        widths = 2 * attn.head_dim
    return LayerWork(kept, attn.window, 2 * attn.n_heads * widths)
