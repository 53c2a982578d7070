"""Real float64 out of transformers, which asks for float32 inside norms, rope and softmax.

`model.double()` alone leaves float32 error on the result; under `Float64` every request for float32
becomes one for float64. Buffers that transformers made in float32, such as rope frequencies, keep
their values: they are part of the model's definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from conformance.reorder import Function, FunctionMode


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Float64(FunctionMode):
    """Turns `.float()`, `.to(float32)`, `softmax(dtype=float32)` and factories into float64."""

    def call(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        widened = {k: _widen(v) for k, v in kwargs.items()}
        return func(*(_widen(a) for a in args), **widened)


@contextmanager
def float64(ropes: Iterable[nn.Module]) -> Iterator[None]:
    """`Float64` around a model in which these ropes make their frequencies anew in a forward pass.

    They do so once before, outside the mode, in float32 as in every other run, and find nothing left
    to do inside it.
    """

    def make(rope: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction():
            rope.forward(*args, **kwargs)

    with Float64(), ExitStack() as stack:
        for rope in ropes:
            stack.callback(rope.register_forward_pre_hook(make, with_kwargs=True).remove)
        yield
