"""This project's engine with one fault put between it and the tap: candidates that are named by their factory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from conformance.candidate import Candidate, Level, Location, Tap
from conformance.engine_candidate import candidates

#: A probe, its value and the position of the value's first token, to what is shown instead.
Fault = Callable[[str, Tensor, int], Tensor]


class Broken(Candidate):
    """An engine's candidate whose values pass a fault before anybody sees them."""

    prefill = (None,)

    def __init__(self, inner: Candidate, fault: Fault, level: Level = Level.L5) -> None:
        self.inner, self.fault, self.level = inner, fault, level
        self.name, self.lacks = f"broken {inner.name}", inner.lacks

    def begin(self, capacity: int) -> None:
        self.inner.begin(capacity)
        self.position = 0

    def step(self, ids: Tensor, tap: Tap) -> None:
        start = self.position
        self.inner.step(ids, lambda probe, value: tap(probe, self.fault(probe, value, start)))
        self.position += len(ids)

    def locate(self, probe: str) -> Location | None:
        return self.inner.locate(probe)


class Roomy(Broken):
    """Is wrong as long as the cache has room for more."""

    def begin(self, capacity: int) -> None:
        super().begin(capacity)
        self.capacity = capacity

    def step(self, ids: Tensor, tap: Tap) -> None:
        self.room = self.capacity - self.position - len(ids)
        super().step(
            ids, lambda p, v: tap(p, _scaled(v) if p.startswith("cache.") and self.room else v)
        )


class Deaf(Broken):
    """Feeds itself each prompt's last token again, whatever it chose."""

    def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
        return [(self.inner.greedy([*ids, *ids[-1:] * n], 1) or [0])[0] for n in range(max_tokens)]


def _scaled(value: Tensor) -> Tensor:
    return value * 1.01


def _late(probe: str, value: Tensor, start: int) -> Tensor:
    """The context of tokens from position 13 on is wrong, in every layer."""
    if probe.endswith(".context"):
        value = value.clone()
        value[:, :, max(13 - start, 0) :] *= 1.01
    return value


def _one_layer(probe: str, value: Tensor, start: int) -> Tensor:
    """One operation of layer 1 is wrong: as layer 0 of a smaller model it would be right."""
    return _scaled(value) if probe == "layers.1.mlp.up" else value


def _decoding(probe: str, value: Tensor, start: int) -> Tensor:
    """Keys are wrong in every step but the first."""
    return _scaled(value) if probe.endswith(".k_rope") and start > 0 else value


def _sound(probe: str, value: Tensor, start: int) -> Tensor:
    return value


def _logits(probe: str, value: Tensor, start: int) -> Tensor:
    return _scaled(value) if probe == "logits" else value


def _made(
    fault: Fault, level: Level = Level.L5, kind: type[Broken] = Broken
) -> Callable[[Path, str, str], list[Candidate]]:
    return lambda model, device, dtype: [kind(candidates(model, device, dtype)[0], fault, level)]


late = _made(_late)
one_layer = _made(_one_layer)
decoding = _made(_decoding)
shallow = _made(_logits, Level.L3)
roomy = _made(_sound, kind=Roomy)
deaf = _made(_sound, kind=Deaf)
sound = _made(_sound)
