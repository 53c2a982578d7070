"""Connections on which nothing happens: uvicorn keeps them for as long as their client likes.

A few hundred that never finish a request's head, or never read an answer's end, would take all the files
that a process may have open, and nobody else were let in.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

STILL = 30.0  # seconds from one look at a connection to the next


class Connection(H11Protocol):
    """One that is closed when two looks in a row find it in the same state, and no request in work.

    A request in work has a deadline of its own, see Exchange.
    """

    _look: asyncio.TimerHandle
    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        seen = self._idle()
        if seen is not None and seen == self._seen:
            self.transport.abort()
            return
        self._seen = seen
        self._look = self.loop.call_later(STILL, self._look_again)

    def _idle(self) -> object | None:
        """What it waits for: its client to read an answer's end, or the head of the request after this one."""
        if self.transport.is_closing():
            return "end"
        cycle: RequestResponseCycle | None = self.cycle
        in_work = cycle is not None and not cycle.response_complete
        return None if in_work else ("head after", cycle)
