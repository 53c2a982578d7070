"""Quantised weights: half a step, products of exactly those numbers, and nothing else of a model touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conformance.compiled_candidate import graphs_as_they_are
from conformance.golden import REPOSITORY_GOLDENS, Golden
from engine import Engine, quantised
from engine.compiled import SUMS_OF_FEW_ROWS
from engine.errors import RequestError
from engine.linear import inner
from engine.quantised import (
    GROUP,
    KINDS,
    Int4Weight,
    Int8Weight,
    LooseWeight,
    PackedInt4Weight,
    Quantised,
)
from tests.engine.tiny import one_thread  # noqa: F401

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GOLDENS = ("llama-bias", "gpt2", "gemma3", "phi3-partial", "gpt-oss", "deepseek-v3-all-experts")


def stood_for(weight: LooseWeight) -> Tensor:
    """The numbers that a weight stands for, read from its bytes by hand: float64 [..., out, in]."""
    if isinstance(weight, Int8Weight):
        return weight.numbers.double() * weight.steps.double()
    assert isinstance(weight, Int4Weight)
    nibbles = [weight.numbers.int() % 16, weight.numbers.int() // 16]
    whole = torch.cat(nibbles, -1).double() - 8  # [..., out, groups, 32]
    return (whole * weight.steps.double() + weight.middles.double()).flatten(-2)


def made(kind: str, weight: Tensor, dtype: torch.dtype) -> LooseWeight:
    """A weight [out, in] quantised as that of an expert, which is never packed."""
    result = KINDS[kind].quantise(weight[None], dtype)
    assert isinstance(result, LooseWeight)
    return result[0]


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    """Rows of any size, some all zero, some far from zero, some with one number above all others."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, groups = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    weight = torch.randn(rows, groups * GROUP, generator=rng)
    for row in weight:
        kind = draw(st.sampled_from(["plain", "zero", "far", "one-sided", "outlier", "sparse"]))
        if kind == "zero":
            row.zero_()
        if kind == "far":
            row.mul_(1e-3).add_(draw(st.sampled_from([-1.0, 3.0])))
        if kind == "one-sided":
            row.abs_()
        if kind == "outlier":
            row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from([-100.0, 1e4]))
        if kind == "sparse":
            row[torch.rand(len(row), generator=rng) < 0.9] = 0.0
        row.mul_(10.0 ** draw(st.sampled_from([-37, -20, -8, -2, 0, 3, 20, 33])))
    return weight


@given(weights(), st.sampled_from(DTYPES))
def test_eight_bits_are_off_by_half_a_step_and_steps_are_as_small_as_can_be(
    weight: Tensor, dtype: torch.dtype
) -> None:
    eight = made("int8", weight, dtype)
    assert isinstance(eight, Int8Weight)
    steps = eight.steps.double()
    assert ((stood_for(eight) - weight).abs() <= steps * 0.50001).all()
    assert (stood_for(eight)[weight == 0] == 0).all()
    assert eight.numbers.abs().max() <= 127
    smallest = torch.finfo(torch.float32).tiny
    largest = weight.double().abs().amax(-1, keepdim=True)
    assert (steps <= (largest / 127).clamp(min=smallest) * (1 + 2**-7)).all()


@given(weights(), st.sampled_from(DTYPES))
def test_four_bits_are_off_by_half_a_step_and_steps_are_as_small_as_can_be(
    weight: Tensor, dtype: torch.dtype
) -> None:
    """Half a step of the group, and what float32 loses of a number that large."""
    four = made("int4", weight, dtype)
    assert isinstance(four, Int4Weight)
    groups = weight.double().unflatten(-1, (-1, GROUP))
    steps, size = four.steps.double(), groups.abs().amax(-1, keepdim=True)
    off = (stood_for(four) - weight).abs().unflatten(-1, (-1, GROUP))
    assert (off <= steps * 0.50001 + size * 2**-22).all()
    of_zeros = (groups == 0).all(-1)
    assert (stood_for(four).unflatten(-1, (-1, GROUP))[of_zeros] == 0).all()
    # A fifteenth of the range; more where the middle, of 8 bits in bfloat16, is rounded by more.
    least = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / 15
    rounding = 2**-8 if dtype == torch.bfloat16 else 2**-22
    smallest = torch.finfo(torch.float32).tiny
    assert (steps <= (least.clamp(min=smallest) + size * rounding) * (1 + 2**-7)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_and_the_least_of_a_row_are_exact_in_float32(kind: str) -> None:
    """A model hangs on its few large weights: see docs/measurements/quantised.md."""
    weight = torch.randn(20, GROUP, generator=torch.Generator().manual_seed(0))
    got = made(kind, weight, torch.float32).dequantised()
    ends = [weight.abs().argmax(-1)] if kind == "int8" else [weight.argmax(-1), weight.argmin(-1)]
    for end in ends:
        want = weight.gather(1, end[:, None])
        assert torch.allclose(got.gather(1, end[:, None]), want, rtol=1e-6, atol=0)


def assert_product(got: Tensor, x: Tensor, numbers: Tensor) -> None:
    """Within rounding of x, of the weights and of the result: four halves of a last place of each product."""
    want = x.double() @ numbers.mT
    room = x.double().abs() @ numbers.mT.abs()
    assert got.dtype == x.dtype
    assert ((got.double() - want).abs() <= 2 * torch.finfo(x.dtype).eps * room).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 32), (50, 96)], ids=str)
def test_products_are_those_of_the_numbers(
    kind: str, shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row, as many as a kernel takes and more; weights in several pieces; in a graph, few rows or many."""
    monkeypatch.setattr(quantised, "PIECE", 1000)
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=rng)
    numbers = stood_for(made(kind, weight, dtype))
    result = KINDS[kind].quantise(weight, dtype)
    for n in (1, 3, 16, 40):
        x = torch.randn(2, n, shape[1], generator=rng).to(dtype)
        assert_product(result.product(x), x, numbers)
    with graphs_as_they_are():
        graph = torch.compile(lambda x: SUMS_OF_FEW_ROWS.linear(x, result), fullgraph=True)
        for n in (1, 3, 16):
            x = torch.randn(1, n, shape[1], generator=rng).to(dtype)
            assert_product(graph(x), x, numbers)
    torch.compiler.reset()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_experts_are_picked_by_number_and_all_at_once(kind: str, dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(0)
    result = KINDS[kind].quantise(torch.randn(4, 24, 64, generator=rng), dtype)
    assert isinstance(result, LooseWeight)
    numbers, x = stood_for(result), torch.randn(3, 64, generator=rng).to(dtype)
    assert_product(result[2].product(x), x, numbers[2])
    e = torch.tensor([3, 0, 3])
    for i, got in enumerate(inner(result, e, x[:, None])):
        assert_product(got.to(dtype), x[i], numbers[e[i]])


def test_rows_that_no_register_fills_are_computed_without_torchs_kernel() -> None:
    """It reads past the end of rows of 33 (torch 2.13): noise, or the end of the process."""
    weight = torch.randn(9, 33, generator=torch.Generator().manual_seed(0))
    x = torch.ones(1, 33, dtype=torch.bfloat16)
    eight = KINDS["int8"].quantise(weight, torch.bfloat16)
    assert_product(eight.product(x), x, stood_for(made("int8", weight, torch.bfloat16)))


def test_a_packed_weight_has_the_numbers_of_a_loose_one() -> None:
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    packed = KINDS["int4"].quantise(weight, torch.bfloat16)
    assert isinstance(packed, PackedInt4Weight)
    loose = made("int4", weight, torch.bfloat16)
    assert torch.equal(packed.dequantised(torch.bfloat16), loose.dequantised(torch.bfloat16))


def bytes_of(module: nn.Module) -> int:
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers()))


@pytest.mark.parametrize(("kind", "least"), [("int8", 3.5), ("int4", 4.5)])
def test_a_weight_takes_a_fraction_of_its_bytes(kind: str, least: float) -> None:
    """int4 in groups of 32 with two float32 beside: 0.75 bytes a number; 0.625 in bfloat16."""
    weight = torch.randn(64, 256)
    assert weight.nbytes >= least * bytes_of(KINDS[kind].quantise(weight, torch.float32))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("int8", name) for name in GOLDENS] + [("int4", name) for name in GOLDENS if name != "gpt2"],
)
def test_a_loaded_model_is_the_plain_one_with_other_numbers_in_its_maps(
    kind: str, name: str
) -> None:
    """A tied table stays, and the head has numbers of its own; a map whose inputs do not fit stays."""
    golden = Golden(REPOSITORY_GOLDENS / name)
    plain, small = (Engine.load(golden.folder, quantization=q) for q in (None, kind))
    replaced = set()
    for path, module in plain.decoder.named_modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            there = getattr(small.decoder.get_submodule(path), leaf)
            if isinstance(there, Quantised):
                replaced.add(f"{path}.{leaf}")
                numbers = made(kind, parameter.flatten(0, -2), torch.float32).dequantised()
                assert torch.equal(there.dequantised(), numbers.view_as(parameter))
                setattr(module, leaf, nn.Parameter(there.dequantised(), requires_grad=False))
            else:
                assert torch.equal(there, parameter)
    fitting = {
        f"{path}.{leaf}"
        for path, module in plain.decoder.named_modules()
        for leaf, parameter in module.named_parameters(recurse=False)
        if leaf in ("weight", "gate", "up", "down") and parameter.ndim > 1
        if parameter.shape[-1] % KINDS[kind].inputs == 0
        if path != "embed" and not path.endswith("router_logits")
    }
    assert replaced == fitting != set()
    assert ("logits.weight" in replaced) == (plain.spec.dim % KINDS[kind].inputs == 0)
    want, got = plain.logits(golden.ids.tolist()), small.logits(golden.ids.tolist())
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int2"}, "no quantization 'int2'; there are int8, int4"),
        ({"quantization": "int8", "batch_invariant": True}, "batch-invariant mode.*quantised"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    options: dict[str, str | bool], message: str, tmp_path: Path
) -> None:
    load: Callable[..., Engine] = Engine.load
    with pytest.raises(RequestError, match=message):
        load(tmp_path, **options)
