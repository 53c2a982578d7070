"""The operations with weights: embedding, linear maps, RMS norm and the gated feed-forward.

Shapes: B batch, T new tokens, H heads, D head_dim; activations are [B, T, dim].
Parameters are born on torch's meta device, shapes without numbers; `engine.weights` fills them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine import spec
from engine.probe import Probe


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, device="meta"), requires_grad=False)


class Embedding(Probe):
    """ids [B, T] to vectors [B, T, dim]."""

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.weight = _empty(vocab_size, dim)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Linear(Probe):
    """x [..., in] to x Wᵀ + b [..., out]; the weight is [out, in]."""

    def __init__(self, n_in: int, n_out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = _empty(n_out, n_in)
        self.bias = _empty(n_out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class SplitHeads(Linear):
    """x [B, T, dim] projected and cut into heads: [B, heads, T, D]."""

    def __init__(self, dim: int, heads: int, head_dim: int, bias: bool) -> None:
        super().__init__(dim, heads * head_dim, bias)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        return super().forward(x).view(B, T, self.heads, -1).transpose(1, 2)  # [B, heads, T, D]


class MergeHeads(Linear):
    """Heads [B, H, T, D] put side by side and projected: [B, T, dim]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2).flatten(2))  # [B, T, H * D] -> [B, T, dim]


class RMSNorm(Probe):
    """x / sqrt(mean(x²) + eps) in float32, cast back, then times the weight (Llama's order).

    Source: Zhang and Sennrich 2019; the order of cast and product is part of the model, as it
    changes bfloat16 results.
    """

    def __init__(self, dim: int, norm: spec.RMSNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight = _empty(dim)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)) on [B, T, dim] (SwiGLU, Shazeer 2020)."""

    def __init__(self, dim: int, mlp: spec.DenseMLP) -> None:
        super().__init__()
        self.gate = Linear(dim, mlp.ffn_dim, mlp.bias)
        self.up = Linear(dim, mlp.ffn_dim, mlp.bias)
        self.act = Probe()
        self.down = Linear(mlp.ffn_dim, dim, mlp.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(F.silu(self.gate(x)) * self.up(x)))
