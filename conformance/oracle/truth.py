"""Real float64 out of transformers, which asks for float32 inside norms, rope and softmax.

`model.double()` alone leaves float32 error on the result; under `Float64` every request for float32
becomes one for float64. Buffers that transformers made in float32, such as rope frequencies, keep
their values: they are part of the model's definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Function = Callable[..., Any]


class FunctionMode(TorchFunctionMode):
    """A torch function mode in one method: `call` says what a torch function does while it is on."""

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Float64(FunctionMode):
    """Turns `.float()`, `.to(float32)`, `softmax(dtype=float32)` and factories into float64."""

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        widened = {k: _widen(v) for k, v in kwargs.items()}
        return func(*(_widen(a) for a in args), **widened)


class SplitK(FunctionMode):
    """Sums every linear map over `parts` slices of the contracted axis, partial sums in the run's dtype.

    Some kernels do so, GPU ones above all; it is the roughest legal order of summation in the noise.
    """

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *rest = args
            bias = rest[0] if rest else kwargs.get("bias")
            total = self._sum(func, x, weight, axis=-1)
            return total if bias is None else total + bias
        if func in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            return self._sum(func, args[0], args[1], axis=-2)
        return func(*args, **kwargs)

    def _sum(self, func: Function, a: Any, b: Any, axis: int) -> Any:
        size = -(-a.shape[-1] // self.parts)
        pairs = zip(a.split(size, -1), b.split(size, axis), strict=True)
        partial = [func(x, y) for x, y in pairs]
        total = partial[0]
        for part in partial[1:]:
            total = total + part
        return total
