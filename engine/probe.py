"""Probes: the places where the decoder can be watched, or have its values replaced.

Every operation of the decoder ends in one. A module that *is* an operation (a norm, a projection)
derives from Probe; where an operation has no module of its own, its result is passed through a
plain Probe, which returns what it is given. Either way a probe's name is its module path, and a
torch forward hook on it sees the result and may hand on another (the idea of TransformerLens's
HookPoint). With nothing attached it costs a function call, and torch.compile removes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakKeyDictionary

from torch import Tensor, nn


class Probe(nn.Module):
    """The identity. Subclasses compute something; their output is what the probe shows."""

    __call__: Callable[..., Tensor]

    def forward(self, value: Tensor) -> Tensor:
        return value


def probes(module: nn.Module, prefix: str = "") -> dict[str, Probe]:
    """All probes below `module`, by name, in the order in which they were declared."""
    return {n: m for n, m in module.named_modules(prefix=prefix) if isinstance(m, Probe)}


#: The probes below a module, looked for once: a step asks whether any of them is watched.
_BELOW: WeakKeyDictionary[nn.Module, list[Probe]] = WeakKeyDictionary()


def watched(module: nn.Module) -> bool:
    """Whether anything is attached to a probe below `module`."""
    if module not in _BELOW:
        _BELOW[module] = list(probes(module).values())
    return any(probe._forward_hooks for probe in _BELOW[module])


class Tap(Protocol):
    """Sees every probe's value as it appears; what it returns is what the decoder goes on with."""

    def __call__(self, probe: str, value: Tensor) -> Tensor: ...


@contextmanager
def attached(tap: Tap, *roots: tuple[str, nn.Module]) -> Iterator[None]:
    """Attaches `tap` to all probes below the (prefix, module) pairs, and detaches it at the end."""

    def hook(name: str) -> Callable[[nn.Module, object, Tensor], Tensor]:
        return lambda module, args, value: tap(name, value)

    handles = [
        probe.register_forward_hook(hook(name))
        for prefix, root in roots
        for name, probe in probes(root, prefix).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
