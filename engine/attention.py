"""Grouped-query and latent attention.

Shapes: B batch, T new tokens, S keys in view, H query heads, K key/value heads, D head_dim. In a packed
pass B is 1 and T are the new tokens of all sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from engine import rope, spec
from engine.backends import Kernel
from engine.cache import Group, LayerCache, packed
from engine.layers import Linear, MergeHeads, RMSNorm, SplitHeads, empty, head_norm
from engine.mask import View
from engine.probe import Probe


class Step(nn.Module):
    """What all layers of one forward pass share, by kind of window and of rope.

    It is a module because torch compiles layers that are alike once if they are given modules and tensors
    alone (see `engine.compiled`).
    """

    def __init__(
        self,
        positions: Tensor,
        groups: Sequence[Group],
        views: Sequence[Mapping[int | None, View]],
        rotations: Mapping[spec.Rope | None, rope.Table | None],
    ) -> None:
        super().__init__()
        self.positions = positions  # [B, T], or [1, N] where there are several groups
        self.groups = groups
        self.views = views  # of each group
        self.rotations = rotations


class Attention(nn.Module):
    """What both kinds have in common: how scores are formed, and the probes of it, for a backend."""

    def __init__(self, attn: spec.Attention, backend: Kernel) -> None:
        super().__init__()
        self.rope, self.window = attn.rope, attn.window
        self.scale, self.softcap = attn.scale, attn.softcap
        self.sinks = empty(attn.n_heads) if attn.sinks else None
        self.attend = backend
        self.scores = Probe()
        self.weights = Probe()
        self.context = Probe()

    def look(self, q: Tensor, kept: Sequence[tuple[Tensor, Tensor]], step: Step) -> Tensor:
        """The context [B, H, T, D'] of queries [B, H, T, D], from each group's keys and values."""
        groups = zip(step.groups, step.views, kept, strict=True)
        return packed(
            [
                self.attend(group.of(q), k, v, views[self.window], self)
                for group, views, (k, v) in groups
            ]
        )


class GroupedQueryAttention(Attention):
    """out(softmax(scale · rope(q) rope(k)ᵀ) v) on [B, T, dim], keys and values from the cache.

    Source: Vaswani et al. 2017; heads that share keys and values, Ainslie et al. 2023.
    """

    def __init__(self, dim: int, attn: spec.GroupedQueryAttention, backend: Kernel) -> None:
        super().__init__(attn, backend)
        H, K, D = attn.n_heads, attn.n_kv_heads, attn.head_dim
        self.q = SplitHeads(dim, H, D, attn.qkv_bias)
        self.k = SplitHeads(dim, K, D, attn.qkv_bias)
        self.v = SplitHeads(dim, K, D, attn.qkv_bias)
        self.q_norm = head_norm(H, D, attn.qk_norm)
        self.k_norm = head_norm(K, D, attn.qk_norm)
        self.q_rope = rope.rotate(attn.rope)
        self.k_rope = rope.rotate(attn.rope)
        self.out = MergeHeads(H * D, dim, attn.out_bias)

    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        rotation = step.rotations[self.rope]
        q = self.q_rope(self.q_norm(self.q(x)), rotation)  # [B, H, T, D]
        k = self.k_rope(self.k_norm(self.k(x)), rotation)  # [B, K, T, D]
        kept = cache(step.groups, k, self.v(x))  # [B, K, S, D] each, group by group
        return self.out(self.look(q, kept, step))  # [B, T, dim]


class LatentAttention(Attention):
    """Attention whose keys and values are read from one cached latent per token, [B, T, dim] to the same.

    A query or key has a part without position and a part with it, which all heads' keys share.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """

    def __init__(self, dim: int, attn: spec.LatentAttention, backend: Kernel) -> None:
        super().__init__(attn, backend)
        self.nope_dim, self.rope_dim, self.v_dim = attn.nope_dim, attn.rope_dim, attn.v_dim
        H, q_rank = attn.n_heads, attn.q_rank
        self.q_down = Linear(dim, q_rank, attn.bias) if q_rank else nn.Identity()
        self.q_norm = RMSNorm(q_rank, attn.latent_norm) if q_rank else nn.Identity()
        self.q = SplitHeads(q_rank or dim, H, attn.nope_dim + attn.rope_dim, bias=False)
        self.kv_down = Linear(dim, attn.kv_rank, attn.bias)
        self.kv_norm = RMSNorm(attn.kv_rank, attn.latent_norm)
        self.k = SplitHeads(dim, 1, attn.rope_dim, attn.bias)
        self.q_rope = rope.rotate(attn.rope)
        self.k_rope = rope.rotate(attn.rope)
        self.kv_up = SplitHeads(attn.kv_rank, H, attn.nope_dim + attn.v_dim, bias=False)
        self.out = MergeHeads(H * attn.v_dim, dim, attn.bias)

    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        rotation = step.rotations[self.rope]
        q = self.q(self.q_norm(self.q_down(x)))  # [B, H, T, nope + rope]
        latent = self.kv_norm(self.kv_down(x))[:, None]  # [B, 1, T, kv_rank]
        k = self.k(x)  # [B, 1, T, rope]
        q_nope, q_turned = q.split((self.nope_dim, self.rope_dim), dim=-1)
        q = torch.cat((q_nope, self.q_rope(q_turned, rotation)), dim=-1)
        latents = cache(step.groups, latent, self.k_rope(k, rotation))
        return self.out(self.look(q, [self._read(*kept) for kept in latents], step))  # [B, T, dim]

    def _read(self, latent: Tensor, k_turned: Tensor) -> tuple[Tensor, Tensor]:
        """The keys [B, H, S, nope + rope] and values [B, H, S, v] of latents and keys [B, 1, S, D]."""
        kv = self.kv_up(latent[:, 0])  # [B, H, S, nope + v]
        k_nope, v = kv.split((self.nope_dim, self.v_dim), dim=-1)
        k_turned = k_turned.expand(-1, k_nope.shape[1], -1, -1)  # [B, H, S, rope]
        return torch.cat((k_nope, k_turned), dim=-1), v


def attention(dim: int, attn: spec.Attention, backend: Kernel) -> Attention:
    """The attention of that kind, its scores by `backend`."""
    match attn:
        case spec.GroupedQueryAttention():
            return GroupedQueryAttention(dim, attn, backend)
        case spec.LatentAttention():
            return LatentAttention(dim, attn, backend)
