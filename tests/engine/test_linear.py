"""Maps of few rows: slices by all threads, and sums in a graph, give torch's own product."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.compiled import SUMS_OF_FEW_ROWS
from engine.linear import (
    FEW_SUMS,
    HALF_ROWS,
    LANES,
    LONE_SUMS,
    MANY_SUMS,
    STREAMS,
    linear,
    product_in_slices,
)

#: Of rows, inputs and outputs: even slices, a rest, fewer outputs than slices, no batch at all.
SHAPES = [((1,), 48, 64), ((3, 1), 33, 50), ((2, 5), 7, 3), ((), 16, 12)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("batch", "n_in", "n_out"), SHAPES)
def test_slices_are_put_together_in_order(
    batch: tuple[int, ...], n_in: int, n_out: int, n: int, transposed: bool
) -> None:
    x, weight = drawn(*batch, n_in), drawn(n_out, n_in)
    if transposed:  # as GPT-2's weights lie
        weight = weight.T.contiguous().T
    done = product_in_slices(x, weight, n)
    torch.testing.assert_close(done, F.linear(x, weight))


def test_few_rows_of_float32_are_cut_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def counting(x: Tensor, weight: Tensor, n: int) -> Tensor:
        cut.append(n)
        return product_in_slices(x, weight, n)

    monkeypatch.setattr("engine.linear.product_in_slices", counting)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    weight, bias = drawn(3, 16), drawn(3)
    for rows, dtype in ((32, torch.float32), (33, torch.float32), (1, torch.bfloat16)):
        x = drawn(rows, 16).to(dtype)
        expected = F.linear(x, weight.to(dtype), bias.to(dtype))
        torch.testing.assert_close(linear(x, weight.to(dtype), bias.to(dtype)), expected)
    assert cut == [3]  # of three outputs no more than three can be made


@pytest.mark.parametrize("piece", [1, 100, 2**20])
def test_many_rows_of_float16_are_multiplied_in_float32(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no faster way, and with the bias rounded once: the nearest float16 of what it is."""
    pieces: list[torch.dtype] = []

    def counting(x: Tensor, weight: Tensor) -> Tensor:
        pieces.append(weight.dtype)
        return F.linear(x, weight)

    monkeypatch.setattr("engine.linear._multiplies_float16", lambda: False)
    monkeypatch.setattr("engine.linear.PIECE", piece)
    monkeypatch.setattr("engine.linear.F", SimpleNamespace(linear=counting))
    x, weight, bias = (drawn(*s).half() for s in ((2, HALF_ROWS, 24), (10, 24), (10,)))
    expected = F.linear(x.double(), weight.double(), bias.double())
    assert torch.equal(linear(x, weight, bias), expected.half())
    assert pieces == [torch.float32] * {1: 10, 100: 3}.get(piece, 1)


def test_float16_is_multiplied_as_it_is_where_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.linear.product_in_float32", None)  # which would not do
    x, weight = drawn(HALF_ROWS, 24), drawn(10, 24)

    def is_torchs(x: Tensor, weight: Tensor) -> bool:
        return torch.equal(linear(x, weight), F.linear(x, weight))

    assert is_torchs(x[1:].half(), weight.half())
    assert is_torchs(x.bfloat16(), weight.bfloat16())
    monkeypatch.setattr("engine.linear._multiplies_float16", lambda: True)
    assert is_torchs(x.half(), weight.half())


def mapped_in_a_graph(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    torch.compiler.reset()
    graph = torch.compile(SUMS_OF_FEW_ROWS.linear, backend="eager", fullgraph=True, dynamic=False)
    done: Tensor = graph(x, weight, bias)
    torch.compiler.reset()
    return done


#: One sum for each, a row in each lane of one vector with and without a rest, more than a vector, slices.
ROWS = [1, 2, LONE_SUMS, LONE_SUMS + 1, FEW_SUMS, LANES, LANES + 3, MANY_SUMS, MANY_SUMS + 1]


@pytest.mark.parametrize("n_out", [3, STREAMS + 2, 2 * 1536])
@pytest.mark.parametrize("rows", ROWS)
def test_a_graphs_maps_are_torchs(rows: int, n_out: int) -> None:
    x, weight, bias = drawn(rows, 1, 24), drawn(n_out, 24), drawn(n_out)
    torch.testing.assert_close(mapped_in_a_graph(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("rows", [1, LONE_SUMS + 1, FEW_SUMS])
def test_a_graphs_maps_in_half_precision_are_summed_in_float32(rows: int) -> None:
    """So many inputs that sums in bfloat16 would be off by more than the last rounding."""
    x, weight = drawn(rows, 1, 4096).bfloat16(), drawn(10, 4096).bfloat16()
    done = mapped_in_a_graph(x, weight)
    expected = F.linear(x.double(), weight.double()).float()
    torch.testing.assert_close(done, expected.bfloat16(), rtol=2**-7, atol=1e-3)


def test_many_rows_read_a_weight_in_several_places() -> None:
    """Each place is a sum of its own, and no more than those: a row is a lane and not a sum."""
    seen: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        seen.append(graph)
        return graph

    torch.compiler.reset()
    graph = torch.compile(SUMS_OF_FEW_ROWS.linear, backend=keep, fullgraph=True, dynamic=False)
    graph(drawn(FEW_SUMS, 24), drawn(64, 24))
    torch.compiler.reset()
    assert len(seen[0].graph.find_nodes(op="call_method", target="sum")) == STREAMS
