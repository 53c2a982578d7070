"""Norms, factors and feed-forward against their formulas, and the tied head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine import Engine, spec
from engine.layers import (
    MLP,
    AllHeadsNorm,
    Embedding,
    Head,
    LayerNorm,
    Linear,
    RMSNorm,
    Scale,
    head_norm,
)
from tests.engine import tiny
from tests.engine.zoo import ZOO

ROWS = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=9)


def parameter(values: Sequence[float] | Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.as_tensor(values, dtype=dtype), requires_grad=False)


def rms_norm(weight: Sequence[float], kind: spec.RMSNorm, dtype: torch.dtype) -> RMSNorm:
    made = RMSNorm(len(weight), kind)
    made.weight = parameter(weight, dtype)
    return made


@given(row=ROWS, plus_one=st.booleans())
def test_norm_is_its_formula(row: list[float], plus_one: bool) -> None:
    weight = [0.5 + i for i in range(len(row))]
    kind = spec.RMSNorm(1e-3, product_in_float32=plus_one, plus_one=plus_one)
    root = math.sqrt(sum(x * x for x in row) / len(row) + 1e-3)
    want = [x / root * (w + plus_one) for x, w in zip(row, weight, strict=True)]
    got = rms_norm(weight, kind, torch.float32)(torch.tensor(row))
    assert got.tolist() == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_norm_does_not_overflow_in_float16() -> None:
    """300² is beyond float16: the mean of squares is float32 whatever the dtype."""
    norm = rms_norm([1.0] * 4, spec.RMSNorm(1e-5), torch.float16)
    got = norm(torch.tensor([300.0, -300.0, 300.0, 300.0], dtype=torch.float16))
    assert got.tolist() == [1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "rounded_between"),
    [
        (spec.RMSNorm(1e-3), True),
        (spec.RMSNorm(1e-3, product_in_float32=True), False),
        (spec.RMSNorm(1e-3, product_in_float32=True, plus_one=True), False),
    ],
)
def test_what_a_norm_rounds_in_bfloat16(kind: spec.RMSNorm, rounded_between: bool) -> None:
    """Once, or before the product with the weight, too; 1 + weight is never rounded."""
    rng = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 64, generator=rng).bfloat16()
    got = rms_norm(weight.tolist(), kind, torch.bfloat16)(x)
    wide = x.double()
    normed = wide / (wide.square().mean() + 1e-3).sqrt()
    if rounded_between:
        normed = normed.bfloat16().double()
    want = ((weight.double() + kind.plus_one) * normed).bfloat16()
    assert got.dtype == torch.bfloat16
    # The last bit may go the other way where the exact product lies between two numbers.
    assert (got != want).sum() <= 1


def test_a_norm_of_all_heads_is_over_the_heads_of_one_token_side_by_side() -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))  # [B, heads, T, D]
    norm = head_norm(3, 5, spec.QKNorm(spec.RMSNorm(1e-3), "all"))
    assert isinstance(norm, AllHeadsNorm)
    norm.weight = parameter([0.5 + i for i in range(15)])
    got = norm(x)
    assert got.shape == x.shape
    for b in range(2):
        for t in range(4):
            row = [float(x[b, h, t, d]) for h in range(3) for d in range(5)]
            root = math.sqrt(sum(v * v for v in row) / 15 + 1e-3)
            want = [v / root * (0.5 + i) for i, v in enumerate(row)]
            assert got[b, :, t].flatten().tolist() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(("over", "sizes"), [("head", (5, 5)), ("all", (20, 10))])
def test_a_norm_of_heads_has_a_weight_per_number_of_a_head_or_of_all(
    over: Literal["head", "all"], sizes: tuple[int, int]
) -> None:
    kind = spec.QKNorm(spec.RMSNorm(1e-3), over)
    norms = [head_norm(heads, 5, kind) for heads in (4, 2)]
    assert [tuple(norm.weight.shape) for norm in norms] == [(size,) for size in sizes]


@given(row=ROWS)
def test_layer_norm_is_its_formula(row: list[float]) -> None:
    n = len(row)
    norm = LayerNorm(n, spec.LayerNorm(1e-3))
    norm.weight = parameter([0.5 + i for i in range(n)])
    norm.bias = parameter([1.0 - i for i in range(n)])
    mean = sum(row) / n
    root = math.sqrt(sum((x - mean) ** 2 for x in row) / n + 1e-3)
    want = [(x - mean) / root * (0.5 + i) + (1 - i) for i, x in enumerate(row)]
    # Of nearly equal numbers the difference from their mean has few digits.
    assert norm(torch.tensor(row)).tolist() == pytest.approx(want, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_factor_is_rounded_to_the_dtype_first_or_is_not(rounded: bool) -> None:
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = Scale(spec.Scale(640**0.5, rounded))(x)
    once = (x.double() * 640**0.5).bfloat16()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, x * torch.tensor(25.25, dtype=torch.bfloat16)) == rounded
    assert torch.equal(got, once) == (not rounded)


def test_embeddings_are_scaled_before_positions_are_added() -> None:
    kind = replace(ZOO["learned"], embed_scale=spec.Scale(3.0))
    embed = tiny.filled(Embedding(kind))
    ids, positions = [4, 0, 4], [7, 0, 65]
    assert embed.positions is not None
    want = 3 * embed.weight[ids] + embed.positions[positions]
    assert torch.allclose(embed(torch.tensor([ids]), torch.tensor(positions))[0], want)


@pytest.mark.parametrize("cap", [None, 0.7])
@pytest.mark.parametrize("factor", [None, 0.25])
def test_logits_are_scaled_and_then_bounded(factor: float | None, cap: float | None) -> None:
    """The other way round they would exceed the cap, or never come near it."""
    scaled = None if factor is None else spec.Scale(factor)
    kind = replace(ZOO["plain"], logits_scale=scaled, logit_softcap=cap)
    head = tiny.filled(Head(kind))
    x = torch.randn(20, generator=torch.Generator().manual_seed(0))
    want = [float(row @ x) * (factor or 1) for row in head.weight]
    if cap is not None:
        want = [cap * math.tanh(logit / cap) for logit in want]
    assert head(x).tolist() == pytest.approx(want, rel=1e-5, abs=1e-6)


def _gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def _gelu_tanh(x: float) -> float:
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS: dict[spec.Activation, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward_is_its_formula(activation: spec.Activation, gated: bool) -> None:
    mlp = tiny.filled(MLP(2, spec.DenseMLP(9, activation, gated, bias=True)))
    x = torch.randn(2, generator=torch.Generator().manual_seed(1)) * 2

    def linear(part: Linear, x: Tensor) -> Tensor:
        return part.weight @ x + part.bias

    up = linear(mlp.up, x)
    bent = torch.tensor(
        [ACTIVATIONS[activation](v) for v in (up if mlp.gate is None else linear(mlp.gate, x))]
    )
    want = linear(mlp.down, bent * up if gated else bent)
    assert (mlp.gate is not None) == gated
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
