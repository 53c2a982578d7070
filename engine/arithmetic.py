"""How maps with weights, products and functions of single numbers are computed: as torch does, or otherwise."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.linear import linear
from engine.quantised import Weight


class Arithmetic:
    """As torch does it: fastest, in an order of sums that hangs on how many rows there are."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """x [..., in] to x Wᵀ + b [..., out]; the weight is [out, in]."""
        return linear(x, weight, bias)

    def each(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The function of every number of x."""
        return function(x)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a [..., m, k] times b [..., k, n]."""
        return a @ b


ORDINARY = Arithmetic()


class Computing:
    """What computes by an arithmetic; see `Decoder.use_invariant`."""

    arithmetic: Arithmetic = ORDINARY
