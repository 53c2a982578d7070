"""The operations with weights: embedding, linear maps, norms and the dense feed-forward.

Shapes: B batch, T new tokens, H heads, D head_dim; activations are [B, T, dim].
Parameters are born on torch's meta device, shapes without numbers; `engine.weights` fills them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine import spec
from engine.arithmetic import ORDINARY, Arithmetic, Computing
from engine.probe import Probe
from engine.quantised import Weight

ACTIVATIONS: dict[spec.Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def empty(*shape: int) -> nn.Parameter:
    """A parameter of that shape whose numbers are still to be loaded."""
    return nn.Parameter(torch.empty(*shape, device="meta"), requires_grad=False)


class Scale(nn.Module):
    """x times a constant, which is `rounded` to the dtype of x first, or is not."""

    def __init__(self, scale: spec.Scale) -> None:
        super().__init__()
        self.factor, self.rounded = scale.factor, scale.rounded

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.tensor(self.factor, dtype=x.dtype) if self.rounded else self.factor)


def scale(factor: spec.Scale | None) -> nn.Module:
    return nn.Identity() if factor is None else Scale(factor)


class Embedding(Probe):
    """ids [B, T] to scaled vectors [B, T, dim], a learned one of each position [T] added if there are any."""

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__()
        self.weight = empty(model.vocab_size, model.dim)
        self.scale = scale(model.embed_scale)
        learned = model.learned_positions
        self.positions = None if learned is None else empty(learned, model.dim)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # type: ignore[override]
        x: Tensor = self.scale(F.embedding(ids, self.weight))
        return x if self.positions is None else x + F.embedding(positions, self.positions)


class Linear(Computing, Probe):
    """x [..., in] to x Wᵀ + b [..., out]; the weight is [out, in]."""

    def __init__(self, n_in: int, n_out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight: Weight = empty(n_out, n_in)
        self.bias = empty(n_out) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return self.arithmetic.linear(x, self.weight, self.bias)


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


class Head(Linear):
    """The last activations [B, T, dim] to logits [B, T, V], scaled, then bounded by the softcap."""

    def __init__(self, model: spec.ModelSpec) -> None:
        super().__init__(model.dim, model.vocab_size)
        self.scale = scale(model.logits_scale)
        self.cap = model.logit_softcap

    def forward(self, x: Tensor) -> Tensor:
        return softcap(self.scale(super().forward(x)), self.cap, self.arithmetic)


def softcap(x: Tensor, cap: float | None, arithmetic: Arithmetic = ORDINARY) -> Tensor:
    """cap * tanh(x / cap): nearly x for small numbers, within ±cap for all (Bello et al. 2016)."""
    return x if cap is None else arithmetic.each(torch.tanh, x / cap) * cap


class RMSNorm(Probe):
    """x / sqrt(mean(x²) + eps) in float32, times the weight, in the order and the form of the spec.

    Source: Zhang and Sennrich 2019; the order of cast and product is part of the model, as it
    changes bfloat16 results.
    """

    def __init__(self, dim: int, norm: spec.RMSNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.product_in_float32, self.plus_one = norm.product_in_float32, norm.plus_one
        self.weight = empty(dim)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if not self.product_in_float32:
            return self.weight * normed.to(x.dtype)
        weight = 1 + self.weight.float() if self.plus_one else self.weight
        product: Tensor = weight * normed
        return product.to(x.dtype)


class AllHeadsNorm(RMSNorm):
    """The RMS norm of all heads [B, heads, T, D] of a token at once."""

    def forward(self, x: Tensor) -> Tensor:
        flat = super().forward(x.transpose(1, 2).flatten(2))  # [B, T, heads * D]
        return flat.view(*flat.shape[:2], x.shape[1], -1).transpose(1, 2)  # [B, heads, T, D]


class LayerNorm(Probe):
    """(x - mean) / sqrt(variance + eps), times weight, plus bias (Ba et al. 2016)."""

    def __init__(self, dim: int, norm: spec.LayerNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        self.weight = empty(dim)
        self.bias = empty(dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def norm(dim: int, kind: spec.Norm | spec.Scale | None) -> nn.Module:
    """The norm of that kind over [..., dim]; None is the identity, and has no probe."""
    match kind:
        case spec.RMSNorm():
            return RMSNorm(dim, kind)
        case spec.LayerNorm():
            return LayerNorm(dim, kind)
        case spec.Scale() | None:
            return scale(kind)


def head_norm(heads: int, head_dim: int, kind: spec.QKNorm | None) -> nn.Module:
    """The norm of queries or keys [B, heads, T, D]; None is the identity, and has no probe."""
    if kind is None:
        return nn.Identity()
    if kind.over == "head":
        return RMSNorm(head_dim, kind.norm)
    return AllHeadsNorm(heads * head_dim, kind.norm)


class MLP(Computing, nn.Module):
    """down(activation(gate(x)) * up(x)) on [B, T, dim] (Shazeer 2020), down(activation(up(x))) ungated."""

    def __init__(self, dim: int, mlp: spec.DenseMLP) -> None:
        super().__init__()
        self.function = ACTIVATIONS[mlp.activation]
        self.gate = Linear(dim, mlp.ffn_dim, mlp.bias) if mlp.gated else None
        self.up = Linear(dim, mlp.ffn_dim, mlp.bias)
        self.act = Probe()
        self.down = Linear(mlp.ffn_dim, dim, mlp.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.act(self.activation(self.up(x))))
        return self.down(self.act(self.activation(self.gate(x)) * self.up(x)))

    def activation(self, x: Tensor) -> Tensor:
        return self.arithmetic.each(self.function, x)
