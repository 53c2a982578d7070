"""Mixture of experts against a plain twin, token by token: who is chosen, how each is weighed, what comes out."""

from __future__ import annotations

import math
from typing import Any, Literal
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine import spec
from engine.errors import ModelFileError
from engine.moe import Experts, MoE
from engine.probe import attached
from tests.engine import tiny

DIM = 6
CLOSE = 1e-5  # scores nearer than this may change places in float32


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class Twin:
    """The definition in Python's own floating point, one token at a time."""

    def __init__(self, moe: spec.MoE, layer: MoE) -> None:
        self.moe = moe
        self.of = {name: p.double() for name, p in layer.named_parameters()}

    def linear(self, name: str, x: Tensor, expert: int | None = None) -> Tensor:
        weight, bias = self.of[f"{name}.weight" if expert is None else name], None
        bias = self.of.get(f"{name}.bias" if expert is None else f"{name}_bias")
        if expert is not None:
            weight, bias = weight[expert], None if bias is None else bias[expert]
        return weight @ x if bias is None else weight @ x + bias

    def choose(self, x: Tensor) -> tuple[list[int], list[float]]:
        """The chosen experts in ascending order, and what each is weighed by."""
        router = self.moe.router
        logits = self.linear("router_logits", x).tolist()
        if router.score == "sigmoid":
            scores = [sigmoid(v) for v in logits]
        else:
            total = sum(math.exp(v) for v in logits)
            scores = [math.exp(v) / total for v in logits]
        extra = self.of["correction"].tolist() if router.correction else [0.0] * len(scores)
        ranked = [s + c for s, c in zip(scores, extra, strict=True)]
        experts = list(range(self.moe.n_experts))
        if router.groups is not None:
            size = len(experts) // router.groups.n
            groups = [experts[i : i + size] for i in range(0, len(experts), size)]
            best = best_of(
                groups, lambda g: sum(sorted(ranked[e] for e in g)[-2:]), router.groups.kept
            )
            experts = [e for group in best for e in group]
        chosen = sorted(best_of(experts, lambda e: ranked[e], self.moe.top_k))
        weights = [scores[e] for e in chosen]
        total = sum(weights) if router.normalise else 1.0
        return chosen, [w / total * router.scale for w in weights]

    def expert(self, e: int, x: Tensor) -> Tensor:
        gate, up = (self.linear(f"experts.{part}", x, e) for part in ("gate", "up"))
        match self.moe.activation:
            case spec.ClampedSwiGLU(alpha, limit):
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
                hidden = (up + 1) * gate * torch.tensor([sigmoid(alpha * g) for g in gate.tolist()])
            case "silu":
                hidden = gate * torch.tensor([sigmoid(g) for g in gate.tolist()]) * up
            case _:
                hidden = gate.clamp(min=0) * up
        return self.linear("experts.down", hidden, e)

    def __call__(self, x: Tensor) -> tuple[list[int], list[float], Tensor]:
        chosen, weights = self.choose(x)
        out = sum((w * self.expert(e, x) for e, w in zip(chosen, weights, strict=True)), 0 * x)
        if self.moe.shared is not None:
            gate = self.linear("shared.gate", x)
            bent = gate * torch.tensor([sigmoid(g) for g in gate.tolist()])
            out = out + self.linear("shared.down", bent * self.linear("shared.up", x))
        return chosen, weights, out


def best_of(items: list[Any], worth: Any, n: int) -> list[Any]:
    """The n of most worth; a draw in which the choice hangs on a rounding is thrown away."""
    order = sorted(items, key=worth, reverse=True)
    assume(n == len(order) or worth(order[n - 1]) - worth(order[n]) > CLOSE)
    return order[:n]


@st.composite
def routers(draw: st.DrawFn) -> spec.MoE:
    size, n_groups = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    kept = draw(st.integers(1, n_groups))
    router = spec.Router(
        draw(st.sampled_from(["softmax", "sigmoid"])),
        normalise=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 2.5])),
        bias=draw(st.booleans()),
        correction=draw(st.booleans()),
        groups=draw(st.sampled_from([None, spec.Groups(n_groups, kept)])),
    )
    return spec.MoE(
        n_experts=size * n_groups,
        top_k=draw(st.integers(1, size * kept)),
        ffn_dim=5,
        router=router,
        activation=draw(st.sampled_from(["silu", "relu", spec.ClampedSwiGLU(1.7, 0.6)])),
        bias=draw(st.booleans()),
        shared=draw(st.sampled_from([None, spec.DenseMLP(7)])),
    )


def run(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        seen[probe] = value
        return value

    with attached(keep, ("", layer)), torch.inference_mode():
        layer(x)
    return seen


@tiny.examples(60)
@given(moe=routers(), seed=st.integers(0, 10**6), batch=st.integers(1, 2), new=st.integers(1, 3))
def test_it_equals_the_plain_twin(moe: spec.MoE, seed: int, batch: int, new: int) -> None:
    """The correction chooses and does not weigh; groups are as good as their two best together."""
    layer = tiny.filled(MoE(DIM, moe), seed)
    x = torch.randn(batch, new, DIM, generator=torch.Generator().manual_seed(seed))
    twin = Twin(moe, layer)
    wanted = [[twin(row.double()) for row in rows] for rows in x]
    seen = run(layer, x)
    with patch("torch.compiler.is_dynamo_compiling", return_value=True):
        in_a_graph = run(layer, x)["out"]
    assert seen["expert_ids"].shape == (batch, new, moe.top_k)
    for b in range(batch):
        for t in range(new):
            ids, weights, out = wanted[b][t]
            assert seen["expert_ids"][b, t].tolist() == ids
            assert seen["expert_weights"][b, t].tolist() == pytest.approx(weights, rel=1e-4)
            for given_out in (seen["out"], in_a_graph):
                assert given_out[b, t].tolist() == pytest.approx(out.tolist(), rel=1e-4, abs=1e-5)


def test_a_graph_that_another_thread_compiles_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's own flag is the whole process's: a long prompt would copy its experts' weights for each token."""
    monkeypatch.setattr("torch.compiler._is_compiling_flag", True)
    monkeypatch.setattr(Experts, "_each_choice", lambda *_: pytest.fail("taken for a graph"))
    moe = spec.MoE(6, 4, 5, spec.Router("softmax", normalise=True, bias=True))
    assert torch.compiler.is_compiling()
    run(tiny.filled(MoE(DIM, moe), seed=3), torch.ones(1, 3, DIM))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_routing_and_sums_are_float32_in_a_bfloat16_model(
    score: Literal["softmax", "sigmoid"],
) -> None:
    """A choice hangs on the last bits; a sum of many experts would be rounded once per expert."""
    moe = spec.MoE(6, 4, 5, spec.Router(score, normalise=True, bias=True))
    layer = tiny.filled(MoE(DIM, moe)).to(torch.bfloat16)
    x = torch.randn(1, 3, DIM, generator=torch.Generator().manual_seed(3)).bfloat16()
    seen = run(layer, x)
    logits = layer.router_logits
    assert logits.bias is not None
    want = x.double() @ logits.weight.double().T + logits.bias.double()
    assert seen["router_logits"].dtype == seen["expert_weights"].dtype == torch.float32
    assert (seen["router_logits"] - want).abs().max() < 1e-6
    assert seen["out"].dtype == torch.bfloat16


def test_ids_that_a_tap_hands_on_are_the_ones_that_are_weighed_and_run() -> None:
    """How a choice between near equals is taken over from a golden."""
    moe = spec.MoE(6, 2, 5, spec.Router("softmax", normalise=False))
    layer = tiny.filled(MoE(DIM, moe))
    x = torch.randn(1, 1, DIM, generator=torch.Generator().manual_seed(4))
    twin = Twin(moe, layer)
    chosen = run(layer, x)["expert_ids"].flatten().tolist()
    others = [e for e in range(6) if e not in chosen][:2]

    def choose(probe: str, value: Tensor) -> Tensor:
        return torch.tensor([[others]]) if probe == "expert_ids" else value

    with attached(choose, ("", layer)):
        got = layer(x)[0, 0]
    scores = twin.linear("router_logits", x[0, 0].double()).softmax(-1)
    want = sum(scores[e] * twin.expert(e, x[0, 0].double()) for e in others)
    assert isinstance(want, Tensor)
    assert got.tolist() == pytest.approx(want.tolist(), rel=1e-4, abs=1e-5)


ROUTER = spec.Router("softmax", normalise=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spec.MoE(4, 5, 3, ROUTER), "5 of 4 experts cannot be chosen"),
        (lambda: spec.MoE(4, 0, 3, ROUTER), "0 of 4 experts cannot be chosen"),
        (lambda: grouped(6, 1, 4, 1), "6 experts cannot lie in 4 groups of which 1 are kept"),
        (lambda: grouped(6, 1, 3, 4), "in 3 groups of which 4 are kept"),
        (lambda: grouped(6, 3, 3, 1), "1 groups of 2 experts cannot offer 3 of them"),
        (lambda: grouped(3, 1, 3, 1), "a group needs two at least"),
        (lambda: spec.ClampedSwiGLU(1.7, 0.0), "swiglu_limit must be positive .*, got 0.0"),
        (lambda: spec.ClampedSwiGLU(1.7, 1e308), "swiglu_limit must be positive .*, got 1e.308"),
        (lambda: spec.ClampedSwiGLU(math.nan, 7.0), "swiglu_alpha must be finite, got nan"),
    ],
)
def test_impossible_experts_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelFileError, match=message):
        make()


def grouped(n_experts: int, top_k: int, n: int, kept: int) -> spec.MoE:
    router = spec.Router("sigmoid", normalise=True, groups=spec.Groups(n, kept))
    return spec.MoE(n_experts, top_k, 3, router)
