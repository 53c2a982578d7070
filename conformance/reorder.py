"""Legal ways to run a model: other orders of sums, or other code for a function: the last bits change.

What a candidate may not be blamed for is measured on these, and whether it is blamed all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]

_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
SOFTMAXES = (torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax)
_MEANS = (torch.mean, torch.Tensor.mean)
_ACTIVATIONS = (
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    torch.sigmoid,
    torch.tanh,
    torch.Tensor.sigmoid,
    torch.Tensor.tanh,
)
_COLUMNS = 256  # of a wide matrix, at once


@dataclass(frozen=True)
class Variant:
    """A legal way to run a model. All variants are right; they differ by rounding alone."""

    attention: str = "eager"
    threads: int = 1
    batch: int = 1
    chunk: int | None = None  # None: the whole prompt at once
    pad: int = 0  # tokens of left padding
    split_k: int = 1
    permute: int | None = None  # seed of the order in which sums are formed
    each: bool = False  # each row of a batch in an order of its own
    other_kernels: bool = False  # see OtherKernels
    fused: bool = False  # attention in one piece: scores and weights are nobody's to replace

    @property
    def name(self) -> str:
        changed = [f"{k}={v}" for k, v in vars(self).items() if v != getattr(PLAIN, k)]
        return ", ".join(changed) or "plain"

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Threads and order of sums as the variant says, in whatever torch runs meanwhile."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with ExitStack() as stack:
                if self.permute is not None:
                    kind = EachPermuted if self.each else Permuted
                    stack.enter_context(kind(self.permute))
                if self.other_kernels:
                    stack.enter_context(OtherKernels())
                if self.split_k > 1:
                    stack.enter_context(SplitK(self.split_k))
                yield
        finally:
            torch.set_num_threads(threads)


PLAIN = Variant()


def _rows(matrix: Tensor, order: Tensor) -> Tensor:
    """matrix[..., order, :], the same in memory, for a wide one several times as fast.

    Weights are seen transposed: of a few columns at a time the cache of a processor holds all rows.
    """
    if matrix.ndim > 2 or matrix.shape[-1] <= _COLUMNS:
        return matrix[..., order, :]
    return torch.cat([part[order] for part in matrix.split(_COLUMNS, -1)], dim=-1)


class FunctionMode(TorchFunctionMode):
    """A torch function mode in one method: `call` says what a torch function does while it is on."""

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class _Products(FunctionMode):
    """Gives every product of matrices, linear maps included, to `product`."""

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *rest = args
            bias = rest[0] if rest else kwargs.get("bias")
            result = self.product(x, weight.transpose(-1, -2))
            return result if bias is None else result + bias
        if func is torch.addmm:
            return args[0] + self.product(args[1], args[2])
        if func in _MATMULS:
            return self.product(args[0], args[1])
        return func(*args, **kwargs)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """[..., n] times [..., n, m], in an order of its own."""
        raise NotImplementedError


class SplitK(_Products):
    """Sums every product over `parts` slices of the contracted axis, partial sums in the run's dtype.

    Some kernels do so, GPU ones above all; it is the roughest legal order of summation.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        size = -(-a.shape[-1] // self.parts)
        pairs = zip(a.split(size, -1), b.split(size, -2), strict=True)
        total, *others = [torch.matmul(x, y) for x, y in pairs]
        for partial in others:
            total = total + partial
        return total


class OtherKernels(_Products):
    """Rounds each product of matrices once and at random, and runs other code for activations.

    No order of a sum of few terms shows how else it may be rounded; rounding up or down by chance does
    (Monte Carlo arithmetic, Parker 1997). Code for one number and for many at once differs in the last
    bits of erf, exp and tanh: which of them torch takes hangs on how numbers lie in memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator("cpu").manual_seed(0)

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _ACTIVATIONS:
            x, *rest = args
            moved = torch.stack((x, x), dim=-1)[..., 0] if x.is_contiguous() else x.contiguous()
            return func(moved, *rest, **kwargs)
        return super().call(func, args, kwargs)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        exact = torch.matmul(a.double(), b.double())
        chance = torch.rand(exact.shape, generator=self.generator).to(exact) - 0.5
        return (exact * (1 + chance * torch.finfo(a.dtype).eps)).to(a.dtype)


class Permuted(_Products):
    """Forms the sums of products, means, layer norms and softmaxes in an order drawn with `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _MEANS and (kwargs.get("dim") or args[1:2]) in (-1, (-1,)):
            mixed, _ = self.mix(args[0])
            return func(mixed, *args[1:], **kwargs)
        if func is torch.nn.functional.layer_norm:
            given = signature(func).bind(*args, **kwargs).arguments
            order = self._order(args[0].shape[-1])
            permuted = {name: given[name][..., order] for name in ("input", "weight", "bias")}
            return func(**given | permuted)[..., order.argsort()]
        if func in SOFTMAXES:
            mixed, back = self.mix(args[0])
            return back(func(mixed, *args[1:], **kwargs))
        return super().call(func, args, kwargs)

    def mix(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Numbers [..., n] in another order, and what puts them back."""
        order = self._order(x.shape[-1])
        return x[..., order], lambda mixed: mixed[..., order.argsort()]

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        order = self._order(a.shape[-1])
        return torch.matmul(a[..., order], _rows(b, order))

    def _order(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator)


class EachPermuted(Permuted):
    """The same with an order of its own for each row along the first axis.

    One run of a wide batch shows as many samples of what rounding may do.
    """

    def mix(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        orders = self._orders(x)
        mixed = torch.take_along_dim(x, orders, -1)
        return mixed, lambda mixed: torch.take_along_dim(mixed, orders.argsort(-1), -1)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        if a.ndim == 2:  # tokens without a batch: experts, and GPT-2's linear maps
            return self.product(a[:, None], b)[:, 0]
        orders = self._orders(a)
        if b.ndim == 2:
            b = b.expand(*orders.shape[:-2], *b.shape)
        return torch.matmul(
            torch.take_along_dim(a, orders, -1),
            torch.take_along_dim(b, orders.transpose(-1, -2), -2),
        )

    def _orders(self, x: Tensor) -> Tensor:
        """Orders of the last axis, [rows, 1, ..., n]."""
        orders = torch.stack([self._order(x.shape[-1]) for _ in range(len(x))])
        return orders.view(len(x), *[1] * (x.ndim - 2), x.shape[-1])
