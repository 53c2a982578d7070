"""The decoder: ids and a cache in, logits out. This is the file to read.

    x = embed(ids)
    in every layer   x = x + attn(pre_attn_norm(x))
                     x = x + mlp(pre_mlp_norm(x))
    logits = head(final_norm(x))

It knows nothing of text, files or model names; `engine.spec` says what is built. Every line ends
in a probe (see `engine.probe`), whose name is its module path: `layers.3.attn.q_rope`.
Shapes: B batch, T new tokens, V vocabulary; activations are [B, T, dim].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine import rope
from engine.attention import Attention, Step, causal
from engine.backends import Backend
from engine.cache import ContiguousCache, LayerCache
from engine.layers import MLP, Embedding, Linear, RMSNorm
from engine.probe import Probe
from engine.spec import LayerSpec, ModelSpec


class Block(nn.Module):
    """One layer: two residual branches, each behind a norm.

    x ──┬── pre_attn_norm ── attn ──(+)──┬── pre_mlp_norm ── mlp ──(+)── out
        └────────────────────────────┘   └─────────────────────────┘
                                  after_attn
    """

    def __init__(self, dim: int, layer: LayerSpec, backend: Backend) -> None:
        super().__init__()
        self.pre_attn_norm = RMSNorm(dim, layer.pre_attn_norm)
        self.attn = Attention(dim, layer.attn, backend)
        self.after_attn = Probe()
        self.pre_mlp_norm = RMSNorm(dim, layer.pre_mlp_norm)
        self.mlp = MLP(dim, layer.mlp)
        self.out = Probe()

    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        x = self.after_attn(x + self.attn(self.pre_attn_norm(x), step, cache))
        return self.out(x + self.mlp(self.pre_mlp_norm(x)))


class Decoder(nn.Module):
    """A whole model of the shape `spec`, its weights still to be loaded, attention by `backend`."""

    def __init__(
        self, spec: ModelSpec, backend: Backend, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed = Embedding(spec.vocab_size, spec.dim)
        self.layers = nn.ModuleList(Block(spec.dim, layer, backend) for layer in spec.layers)
        self.final_norm = RMSNorm(spec.dim, spec.final_norm)
        self.logits = Linear(spec.dim, spec.vocab_size)
        ropes = {layer.attn.rope for layer in spec.layers}
        self.frequencies = {r: rope.frequencies(r).to(device) for r in ropes}

    def use(self, backend: Backend) -> None:
        """Attention by another kernel from now on, with the same weights."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = backend

    def forward(self, ids: Tensor, cache: ContiguousCache, last_only: bool = False) -> Tensor:
        """Logits [B, T, V] of ids [B, T] (`last_only`: [B, 1, V]), read against and added to `cache`."""
        positions, keys = cache.extend(ids.shape[1])  # [T], [S]
        x = self.embed(ids)
        step = Step(
            visible=causal(positions[:, None], keys[None, :]),
            rotations={r: rope.table(f, positions, x.dtype) for r, f in self.frequencies.items()},
        )
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer(x, step, layer_cache)
        x = self.final_norm(x[:, -1:] if last_only else x)
        return self.logits(x)
