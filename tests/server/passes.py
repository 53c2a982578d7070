"""Forward passes that are held, so that a test decides what happens in the midst of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Semaphore
from typing import Any

from engine import Engine
from tests.server.serving import PATIENCE


class Passes:
    """Every forward pass of an engine waits until it is let through, once it is inside."""

    def __init__(self) -> None:
        self.begun, self._let = Semaphore(0), Semaphore(0)

    def __call__(self, *_: Any) -> None:
        self.begun.release()
        if not self._let.acquire(timeout=PATIENCE):
            raise TimeoutError("nobody lets the pass through")

    def let(self, n: int) -> None:
        self._let.release(n)

    def close(self) -> None:
        """No pass is let through that has not been yet."""
        while self._let.acquire(blocking=False):
            pass

    def wait(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE), "no pass begins"


@contextmanager
def passes(engine: Engine) -> Iterator[Passes]:
    held = Passes()
    handle = engine.decoder.embed.register_forward_pre_hook(held)
    try:
        yield held
    finally:
        handle.remove()
        held.let(10_000)  # whatever still waits
