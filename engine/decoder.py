"""The decoder: ids and a cache in, logits out. This is the file to read.

    x = embed(ids)
    in every layer   x = x + post_attn_norm(attn(pre_attn_norm(x)))
                     x = x + post_mlp_norm(mlp(pre_mlp_norm(x)))
    logits = head(final_norm(x))

It knows nothing of text, files or model names; `engine.spec` says what is built, and any norm may be
the identity. Every line ends in a probe (see `engine.probe`), whose name is its module path:
`layers.3.attn.q_rope`.
Shapes: B batch, T new tokens, V vocabulary; activations are [B, T, dim].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn

from engine import invariant, rope, spec
from engine.arithmetic import Computing
from engine.attention import Attention, Step, attention
from engine.backends import Kernel
from engine.cache import Cache, Group, LayerCache, Part, in_row
from engine.layers import MLP, Embedding, Head, norm
from engine.mask import PLAIN, Custom, View
from engine.moe import MoE
from engine.probe import Probe, watched

PIECE = 1024  # tokens of a feed-forward


class Block(nn.Module):
    """One layer: two residual branches, each with a norm before it and one after it.

    x ─┬─ pre_attn_norm ─ attn ─ post_attn_norm ─(+)─┬─ pre_mlp_norm ─ mlp ─ post_mlp_norm ─(+)─ out
       └──────────────────────────────────────────┘  └────────────────────────────────────────┘
                                          after_attn
    """

    def __init__(self, dim: int, layer: spec.LayerSpec, backend: Kernel) -> None:
        super().__init__()
        self.pre_attn_norm = norm(dim, layer.pre_attn_norm)
        self.attn = attention(dim, layer.attn, backend)
        self.post_attn_norm = norm(dim, layer.post_attn_norm)
        self.after_attn = Probe()
        self.pre_mlp_norm = norm(dim, layer.pre_mlp_norm)
        self.mlp = MoE(dim, layer.mlp) if isinstance(layer.mlp, spec.MoE) else MLP(dim, layer.mlp)
        self.post_mlp_norm = norm(dim, layer.post_mlp_norm)
        self.out = Probe()

    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        x = self.after_attn(x + self.post_attn_norm(self.attn(self.pre_attn_norm(x), step, cache)))
        return self.out(x + self.post_mlp_norm(in_pieces(self.mlp, self.pre_mlp_norm(x))))


def in_pieces(feed_forward: nn.Module, x: Tensor) -> Tensor:
    """The feed-forward of x [B, T, dim], some tokens at a time: of many its insides would be the largest.

    Where one of its probes is watched all come at once, so that what it shows is whole.
    """
    if x.shape[1] <= PIECE or watched(feed_forward):
        return cast("Tensor", feed_forward(x))
    return torch.cat([feed_forward(piece) for piece in x.split(PIECE, dim=1)], dim=1)


class Decoder(nn.Module):
    """A whole model of the shape `model`, its weights still to be loaded, attention by `backend`."""

    def __init__(
        self,
        model: spec.ModelSpec,
        backend: Kernel,
        device: torch.device | str = "cpu",
        custom: Custom = PLAIN,
        block: type[Block] = Block,
    ) -> None:
        super().__init__()
        self.spec = model
        self.embed = Embedding(model)
        self.layers = nn.ModuleList(block(model.dim, layer, backend) for layer in model.layers)
        self.final_norm = norm(model.dim, model.final_norm)
        self.logits = Head(model)
        self.custom = custom
        self.windows = {layer.attn.window for layer in model.layers}
        self.rotations = rope.Rotations((layer.attn.rope for layer in model.layers), device)

    def use(self, backend: Kernel) -> None:
        """Attention by another kernel from now on, with the same weights."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = backend

    def use_invariant(self) -> None:
        """Bits that do not depend on what is computed beside a token, at a price, from now on."""
        self.use(invariant.attend)
        for module in self.modules():
            if isinstance(module, Computing):
                module.arithmetic = invariant.INVARIANT

    def forward(
        self,
        ids: Tensor,
        cache: Cache,
        parts: Sequence[Part] | None = None,
        last: int | Sequence[int] | None = None,
        read_as: int | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of ids [B, T], read against and added to `cache`.

        A row of ids is the next T tokens of one of the cache's rooms, in order; or a single row [1, T]
        holds the `parts` of several sequences, one after another. With `last` there are logits of so many
        last tokens of each sequence alone: as many of every one, or of each its own number. `read_as`
        stands in for that of the rooms.
        """
        parts = parts or cache.rows(ids.shape)
        step = self.step(cache.extend(parts, read_as))
        places = None if last is None else torch.tensor(_ends(parts, last), device=ids.device)
        logits = self.run(ids.view_as(step.positions), step, cache.layers, places)
        return logits.view(len(ids), -1, logits.shape[-1])

    def step(self, groups: Sequence[Group]) -> Step:
        """What all layers share in a pass of these groups."""
        positions = in_row([group.q_pos for group in groups])
        lengths = in_row([group.read_as for group in groups])
        return Step(
            positions,
            groups,
            [
                {w: View(group.q_pos, group.reaches[w].k_pos, w, self.custom) for w in self.windows}
                for group in groups
            ],
            self.rotations(positions[:, None], lengths[:, None], self.embed.weight.dtype),
        )

    def run(
        self, ids: Tensor, step: Step, caches: Iterable[nn.Module], places: Tensor | None = None
    ) -> Tensor:
        """The forward pass: logits [B, T, V] of ids [B, T], or one row [1, N] of several groups.

        With `places`, of the B * T tokens counted from the first, there are logits [1, n, V] of those n.
        """
        x = self.embed(ids, step.positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, step, cache)
        x = self.final_norm(x if places is None else x.flatten(0, 1)[None, places])
        return self.logits(x)


def _ends(parts: Sequence[Part], last: int | Sequence[int]) -> list[int]:
    """Among all tokens of a pass the places of the `last` ones of each part."""
    wanted = [last] * len(parts) if isinstance(last, int) else last
    ends = accumulate(part.n for part in parts)
    return [place for end, n in zip(ends, wanted, strict=True) for place in range(end - n, end)]
