"""Another candidate with a tap of one's own before the suite's: its values are seen, or changed, on the way."""

from __future__ import annotations

from torch import Tensor

from conformance.candidate import Candidate, Location, Tap


class Tapped(Candidate):
    """`inner`, whose values `before` is given first; what that returns is what the suite is shown.

    It shows and lacks the same probes, and has no loop of its own.
    """

    def __init__(self, inner: Candidate, before: Tap) -> None:
        self.inner, self.before = inner, before
        self.name, self.level, self.lacks = inner.name, inner.level, inner.lacks
        self.partial, self.prefill = inner.partial, inner.prefill
        self.cache_rounding = inner.cache_rounding

    def begin(self, capacity: int) -> None:
        self.inner.begin(capacity)

    def step(self, ids: Tensor, tap: Tap) -> None:
        self.inner.step(ids, lambda probe, value: tap(probe, self.before(probe, value)))

    def locate(self, probe: str) -> Location | None:
        return self.inner.locate(probe)
