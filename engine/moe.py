"""Mixture of experts: a router chooses a few feed-forwards for each token and weighs their results.

Shapes: B batch, T new tokens, E experts, k of them chosen; activations are [B, T, dim].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine import spec
from engine.arithmetic import ORDINARY, Arithmetic, Computing
from engine.layers import ACTIVATIONS, MLP, Linear, empty
from engine.linear import inner, written
from engine.probe import Probe
from engine.quantised import LooseWeight


class MoE(Computing, nn.Module):
    """The weighted sum of the chosen experts' results, and a shared expert's if there is one.

    The router computes in float32 whatever the dtype: which experts are chosen hangs on the last bits.
    """

    def __init__(self, dim: int, moe: spec.MoE) -> None:
        super().__init__()
        self.router, self.top_k = moe.router, moe.top_k
        self.router_logits = RouterLogits(dim, moe.n_experts, moe.router.bias)
        self.correction = empty(moe.n_experts) if moe.router.correction else None
        self.expert_ids = Probe()
        self.expert_weights = Probe()
        self.experts = Experts(dim, moe)
        self.shared = None if moe.shared is None else MLP(dim, moe.shared)
        self.out = Probe()

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router_logits(x)  # [B, T, E]
        scores = self._score(logits)
        ids = self.expert_ids(self._choose(scores))  # [B, T, k]
        weights = self.expert_weights(self._weigh(scores, ids))  # [B, T, k]
        routed = self.experts(x, ids, weights)
        return self.out(routed if self.shared is None else routed + self.shared(x))

    def _score(self, logits: Tensor) -> Tensor:
        if self.router.score == "softmax":
            return logits.softmax(-1)
        return self.arithmetic.each(torch.sigmoid, logits)

    def _choose(self, scores: Tensor) -> Tensor:
        """The k best experts of each token in ascending order, which says nothing of their rank."""
        ranked = scores if self.correction is None else scores + self.correction.float()
        if groups := self.router.groups:
            grouped = ranked.unflatten(-1, (groups.n, -1))  # [B, T, groups, E / groups]
            best = grouped.topk(2, dim=-1).values.sum(-1)  # [B, T, groups]
            kept = best.topk(groups.kept, dim=-1).indices
            left_out = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, False)
            ranked = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
        return ranked.topk(self.top_k, dim=-1).indices.sort(-1).values

    def _weigh(self, scores: Tensor, ids: Tensor) -> Tensor:
        weights = scores.gather(-1, ids)  # without the correction
        if self.router.normalise:
            # Sigmoids may all be zero.
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.router.scale


class RouterLogits(Linear):
    """x Wᵀ + b in float32: [B, T, E]."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return self.arithmetic.linear(x.float(), self.weight.float(), bias)


class Experts(Computing, Probe):
    """Each token's sum of weight · down(gated(gate(x), up(x))) over its experts, formed in float32."""

    def __init__(self, dim: int, moe: spec.MoE) -> None:
        super().__init__()
        E, ffn_dim = moe.n_experts, moe.ffn_dim
        self.activation = moe.activation
        self.gate: Tensor | LooseWeight = empty(E, ffn_dim, dim)
        self.up: Tensor | LooseWeight = empty(E, ffn_dim, dim)
        self.down: Tensor | LooseWeight = empty(E, dim, ffn_dim)
        self.gate_bias = empty(E, ffn_dim) if moe.bias else None
        self.up_bias = empty(E, ffn_dim) if moe.bias else None
        self.down_bias = empty(E, dim) if moe.bias else None

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:  # type: ignore[override]
        rows = x.flatten(0, 1)  # [B * T, dim]
        if torch.compiler.is_dynamo_compiling():
            return self._each_choice(rows, ids, weights).to(x.dtype).view_as(x)
        k = ids.shape[-1]
        total = torch.zeros_like(rows, dtype=torch.float32)
        # Each expert multiplies all of its tokens at once: choices [B * T * k] in the order of experts.
        chosen, order = ids.flatten().sort(stable=True)
        experts, counts = chosen.unique_consecutive(return_counts=True)
        for expert, mine in zip(experts.tolist(), order.split(counts.tolist()), strict=True):
            token = mine // k
            result = self._expert(expert, rows[token]) * weights.flatten()[mine, None]
            total.index_add_(0, token, result.float())
        return total.to(x.dtype).view_as(x)

    def _each_choice(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The same for rows [n, dim] without a look at what was chosen: what a graph can hold.

        The maps are sums of products, of which no more than the chosen experts' weights is read.
        """
        n, k = ids.flatten(0, 1).shape
        e = ids.flatten()  # [n * k]

        def linear(x: Tensor, weight: Tensor | LooseWeight, bias: Tensor | None) -> Tensor:
            done = inner(weight, e, written(x)[:, None]).to(x.dtype)  # [n * k, out]
            return done if bias is None else done + bias[e]

        x = x.repeat_interleave(k, 0)
        gate, up = linear(x, self.gate, self.gate_bias), linear(x, self.up, self.up_bias)
        product = gated(gate, up, self.activation, self.arithmetic)
        result = linear(product, self.down, self.down_bias) * weights.view(-1, 1)
        return result.float().view(n, k, -1).sum(1)

    def _expert(self, e: int, x: Tensor) -> Tensor:
        """Expert e's result on rows [n, dim]."""
        linear = self.arithmetic.linear
        gate = linear(x, self.gate[e], _row(self.gate_bias, e))
        up = linear(x, self.up[e], _row(self.up_bias, e))
        product = gated(gate, up, self.activation, self.arithmetic)
        return linear(product, self.down[e], _row(self.down_bias, e))


def gated(
    gate: Tensor,
    up: Tensor,
    kind: spec.Activation | spec.ClampedSwiGLU,
    arithmetic: Arithmetic = ORDINARY,
) -> Tensor:
    """activation(gate) * up, or the clamped form (see `spec.ClampedSwiGLU`)."""
    if not isinstance(kind, spec.ClampedSwiGLU):
        return arithmetic.each(ACTIVATIONS[kind], gate) * up
    gate, up = gate.clamp(max=kind.limit), up.clamp(-kind.limit, kind.limit)
    return (up + 1) * gate * arithmetic.each(torch.sigmoid, kind.alpha * gate)


def _row(bias: Tensor | None, e: int) -> Tensor | None:
    return None if bias is None else bias[e]
