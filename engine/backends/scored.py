"""What a backend is told of the attention that calls it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.probe import Probe


class Scored(Protocol):
    """How scores are formed, and the probes of what is made of them.

    A score is q·k times `scale`, then bounded by `softcap` if there is one; `sinks` [H] are each
    head's logit that takes part in the softmax and has no value.
    """

    scale: float
    softcap: float | None

    @property
    def sinks(self) -> Tensor | None: ...

    scores: Probe
    weights: Probe
    context: Probe
