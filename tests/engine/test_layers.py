"""Norm and feed-forward against their formulas, and the tied head."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from engine import Engine, spec
from engine.layers import MLP, RMSNorm
from tests.engine import tiny


@given(row=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=9))
def test_norm_is_its_formula(row: list[float]) -> None:
    norm = RMSNorm(len(row), spec.RMSNorm(1e-3))
    weight = [0.5 + i for i in range(len(row))]
    norm.weight = nn.Parameter(torch.tensor(weight), requires_grad=False)
    root = math.sqrt(sum(x * x for x in row) / len(row) + 1e-3)
    want = [x / root * w for x, w in zip(row, weight, strict=True)]
    assert norm(torch.tensor(row)).tolist() == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_norm_does_not_overflow_in_float16() -> None:
    """300² is beyond float16: the mean of squares is float32 whatever the dtype."""
    norm = RMSNorm(4, spec.RMSNorm(1e-5))
    norm.weight = nn.Parameter(torch.ones(4, dtype=torch.float16), requires_grad=False)
    got = norm(torch.tensor([300.0, -300.0, 300.0, 300.0], dtype=torch.float16))
    assert got.tolist() == [1.0, -1.0, 1.0, 1.0]


def test_feed_forward_is_its_formula() -> None:
    mlp = MLP(2, spec.DenseMLP(ffn_dim=3, bias=True))
    rng = torch.Generator().manual_seed(0)
    for part in (mlp.gate, mlp.up, mlp.down):
        part.weight = nn.Parameter(torch.randn(part.weight.shape, generator=rng), False)
        assert part.bias is not None
        part.bias = nn.Parameter(torch.randn(part.bias.shape, generator=rng), False)
    x = torch.randn(2, generator=rng)
    gate = mlp.gate.weight @ x + mlp.gate.bias
    up = mlp.up.weight @ x + mlp.up.bias
    want = mlp.down.weight @ (gate / (1 + (-gate).exp()) * up) + mlp.down.bias
    assert mlp(x).tolist() == pytest.approx(want.tolist(), rel=1e-5)


def test_a_tied_head_shares_the_embedding_s_storage() -> None:
    """A copy would cost a quarter of a small model's memory."""
    decoder = Engine.load(tiny.REPOSITORY_GOLDENS / "llama-tied").decoder
    assert decoder.logits.weight.data_ptr() == decoder.embed.weight.data_ptr()
    untied = Engine.load(tiny.REPOSITORY_GOLDENS / "llama-gqa").decoder
    assert untied.logits.weight.data_ptr() != untied.embed.weight.data_ptr()


def test_no_parameter_wants_a_gradient() -> None:
    decoder = Engine.load(tiny.REPOSITORY_GOLDENS / "llama-bias").decoder
    assert not any(parameter.requires_grad for parameter in decoder.parameters())
