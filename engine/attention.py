"""Grouped-query attention and the one mask function.

Shapes: B batch, T new tokens, S keys in view, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from engine import rope
from engine.backends import Backend
from engine.cache import LayerCache
from engine.layers import MergeHeads, SplitHeads
from engine.probe import Probe
from engine.spec import GroupedQueryAttention, Rope


def causal(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Which keys each query sees, from positions alone: bool [T, S] from [T, 1] and [1, S].

    One function for prefill, chunks and decode steps; a key slot without a token has position -1.
    """
    return (k_pos >= 0) & (k_pos <= q_pos)


@dataclass(frozen=True)
class Step:
    """What all layers of one forward pass share."""

    visible: Tensor  # bool [T, S]
    rotations: Mapping[Rope, rope.Table]


class Attention(nn.Module):
    """out(softmax(rope(q) rope(k)ᵀ / sqrt(D)) v) on [B, T, dim], keys and values from the cache."""

    def __init__(self, dim: int, attn: GroupedQueryAttention, backend: Backend) -> None:
        super().__init__()
        self.rope = attn.rope
        self.scale = attn.scale
        self.attend = backend
        self.q = SplitHeads(dim, attn.n_heads, attn.head_dim, attn.qkv_bias)
        self.k = SplitHeads(dim, attn.n_kv_heads, attn.head_dim, attn.qkv_bias)
        self.v = SplitHeads(dim, attn.n_kv_heads, attn.head_dim, attn.qkv_bias)
        self.q_rope = rope.Rotate()
        self.k_rope = rope.Rotate()
        self.scores = Probe()
        self.weights = Probe()
        self.context = Probe()
        self.out = MergeHeads(attn.n_heads * attn.head_dim, dim, attn.out_bias)

    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        rotation = step.rotations[self.rope]
        q = self.q_rope(self.q(x), rotation)  # [B, H, T, D]
        k = self.k_rope(self.k(x), rotation)  # [B, K, T, D]
        k, v = cache(k, self.v(x))  # [B, K, S, D]
        context = self.attend(
            q, k, v, step.visible, self.scale, self.scores, self.weights, self.context
        )  # [B, H, T, D]
        return self.out(context)  # [B, T, dim]
