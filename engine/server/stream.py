"""Server-sent events (WHATWG HTML, section 9.2): the framing, and a response that never ends in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.server.errors import ApiError
from engine.server.exchange import Exchange

PATIENCE = 2.0  # seconds that the end of a stream may take to be sent
DONE = b"data: [DONE]\n\n"


def event(document: Mapping[str, Any], kind: str | None = None) -> bytes:
    """One event. All but ASCII is escaped, as some clients take U+2028 or U+0085 for the end of a line."""
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + json.dumps(document, allow_nan=False).encode() + b"\n\n"


def error_event(error: ApiError) -> bytes:
    return event(error.document)


class EventStream(Response):
    """Sends events as they come. `begun` waits for the first, so that what fails before has a status."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes],
        failed: Callable[[Exception], ApiError],
        failure: Callable[[ApiError], bytes],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._events = first, events
        self._failed, self._failure = failed, failure

    @classmethod
    async def begun(
        cls,
        events: AsyncGenerator[bytes],
        failed: Callable[[Exception], ApiError],
        failure: Callable[[ApiError], bytes] = error_event,
    ) -> EventStream:
        """`failed` says what error it is that ended the events, and `failure` how it is sent."""
        return cls(await anext(events), events, failed, failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def body(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        exchange: Exchange = scope["state"]["exchange"]
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        error: ApiError | None = None
        try:
            async with aclosing(self._events) as events:
                await send(start)
                await body(self._first)
                async for data in events:
                    await body(data)
        except asyncio.CancelledError:  # the clock was stopped, see Exchange
            error = exchange.verdict
            if error is None:
                raise
        except Exception as fault:
            error = self._failed(fault)
        async with asyncio.timeout(PATIENCE):  # who does not read is not waited for
            if error is not None:
                await body(self._failure(error))
            await body(b"", more=False)
