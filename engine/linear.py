"""Maps with weights, x Wᵀ: as torch multiplies, of few rows by all threads, and as sums in a graph.

torch's product of few rows of float32 keeps one thread busy on some processors (seen on an AMD EPYC).
Cut into slices of the outputs, each a product of a batch, it keeps all of them busy, and the slices of
large maps stay in the cache while the rows go by. Measured: docs/measurements/few_rows.md.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.quantised import PIECE, LooseWeight, PackedInt4Weight, Weight

#: Rows of which slices are faster than a whole, and outputs of a slice.
FEW, SLICE = 32, 1536
#: Rows of float16 from which a product in float32 is faster, where a processor has none in float16.
HALF_ROWS = 8
#: Up to so many rows a map in a graph is sums of products: of float32 weights on a CPU, and of others.
MANY_SUMS, FEW_SUMS = 32, 8
#: Up to so many rows of the former have a sum each; more lie side by side, one in each lane of a vector.
LONE_SUMS = 4
#: What rows are filled up to, the numbers of an AVX-512 vector; and places where a loop reads the weights.
LANES, STREAMS = 16, 8


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [..., in] to x Wᵀ + b [..., out]; the weight is [out, in]."""
    if not isinstance(weight, Tensor):
        done = weight.product(x)
    elif _is_slow(x):
        return product_in_float32(x, weight, bias)
    elif (n := _slices(x, weight)) > 1:
        done = product_in_slices(x, weight, n)
    else:
        return F.linear(x, weight, bias)
    return done if bias is None else done + bias


def _slices(x: Tensor, weight: Tensor) -> int:
    """How many products are fastest."""
    if x.numel() > FEW * x.shape[-1] or x.dtype != torch.float32 or x.device.type != "cpu":
        return 1
    threads: int = _threads()
    return min(max(threads, len(weight) // SLICE), len(weight))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _threads() -> int:
    return torch.get_num_threads()


def product_in_slices(x: Tensor, weight: Tensor, n: int) -> Tensor:
    """x [..., in] to x Wᵀ [..., out] by `n` products of as many outputs; the rest is one of its own."""
    rows = x.reshape(-1, x.shape[-1])
    even = len(weight) - len(weight) % n
    slices = weight[:even].unflatten(0, (n, -1))  # [n, out / n, in]
    done = torch.bmm(rows.expand(n, *rows.shape), slices.mT)  # [n, rows, out / n]
    done = done.transpose(0, 1).flatten(1)
    if even < len(weight):
        done = torch.cat((done, F.linear(rows, weight[even:])), 1)
    return done.view(*x.shape[:-1], len(weight))


def _is_slow(x: Tensor) -> bool:
    """Whether x is of many rows in float16 and this processor has no product of those."""
    many = x.dtype == torch.float16 and x.numel() >= HALF_ROWS * x.shape[-1]
    return many and x.device.type == "cpu" and not _multiplies_float16()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _multiplies_float16() -> bool:
    known: bool = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return known


def product_in_float32(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b in float32, rounded once; the weight is made float32 some outputs at a time."""
    wide = x.float()
    pieces = weight.split(max(1, PIECE // weight.shape[1]))
    done = torch.cat([F.linear(wide, piece.float()) for piece in pieces], -1)
    return (done if bias is None else done + bias).to(x.dtype)


# -- in a graph ------------------------------------------------------------------------------------


def are_sums(rows: Tensor, weight: Weight) -> bool:
    """Whether sums of products are faster than a matrix product of rows [n, in]."""
    return len(rows) <= (MANY_SUMS if _is_float32_on_cpu(weight) else FEW_SUMS)


def sums_of_products(rows: Tensor, weight: Weight) -> Tensor:
    """rows [n, in] to [n, out] as sums of products, where that can be."""
    if isinstance(weight, PackedInt4Weight):
        return weight.product(rows)
    if len(rows) > LONE_SUMS and _is_float32_on_cpu(weight):
        return side_by_side(rows, weight)
    # A sum for each row: the compiler puts them into one loop, which reads a number of the weights once.
    return torch.stack([inner(weight, ..., row) for row in written(rows)]).to(rows.dtype)


def side_by_side(rows: Tensor, weight: Tensor) -> Tensor:
    """The same with a row in each lane of the processor's vectors: a number is multiplied for all at once.

    The loop reads the weights in several places: where one number is used so often a processor does not
    look far enough ahead to fetch the next page in time, and would wait for it.
    """
    n = len(rows)
    columns = written(F.pad(rows.t(), (0, -n % LANES)))  # [in, lanes]
    shares = weight.split(-(-len(weight) // STREAMS))
    sums = torch.cat([(share[:, :, None] * columns).sum(1) for share in shares])  # [out, lanes]
    return sums[:, :n].t()


def _is_float32_on_cpu(weight: Weight) -> TypeGuard[Tensor]:
    return (
        isinstance(weight, Tensor) and weight.dtype == torch.float32 and weight.device.type == "cpu"
    )


def inner(weight: Tensor | LooseWeight, at: Any, x: Tensor) -> Tensor:
    """Sums over the last axis of weight[at] [..., in] times x [..., in], in float32."""
    if isinstance(weight, Tensor):
        return (weight[at].float() * x.float()).sum(-1)
    return weight.inner(at, x)


def written(x: Tensor) -> Tensor:
    """x, computed once, before it is read.

    What comes before a map, say a norm, would be computed for each of its outputs again: of eight rows
    that takes longer than the map. Given strides make the compiler (torch 2.13) write x down.
    """
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())
