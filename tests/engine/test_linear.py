"""Maps of few rows: slices by all threads, and sums in a graph, give torch's own product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.compiled import FEW, SUMS_OF_FEW_ROWS
from engine.linear import linear, product_in_slices

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


@pytest.mark.parametrize("rows", [1, 2, FEW])
def test_in_a_graph_each_row_has_sums_of_its_own(rows: int) -> None:
    x, weight, bias = drawn(rows, 1, 24), drawn(10, 24), drawn(10)
    torch.compiler.reset()
    graph = torch.compile(SUMS_OF_FEW_ROWS.linear, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(graph(x, weight, bias), F.linear(x, weight, bias))
    torch.compiler.reset()


def test_a_graph_of_more_rows_holds_slices() -> None:
    x, weight = drawn(FEW + 1, 24), drawn(2 * 1536, 24)
    torch.compiler.reset()
    graph = torch.compile(SUMS_OF_FEW_ROWS.linear, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(graph(x, weight), F.linear(x, weight))
    torch.compiler.reset()
