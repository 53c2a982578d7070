"""One HTTP request from its first byte to its answer's last: the body, the deadline, and who leaves early.

Whatever ends a request before its time does so in one way: its clock is set to now, which cancels what
is being done for it, and the cancelled code gives back what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager, contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import ApiError
from engine.server.metrics import Metrics
from engine.server.security import Guard
from engine.server.settings import Settings

log = logging.getLogger("lockstep.server")

#: What is answered even while the server starts or stops.
ALWAYS = frozenset({"/health", "/ready", "/metrics"})

#: A body that is too long is read to its end all the same, up to so many times the limit: most clients
#: look for an answer when they have sent everything, and would find the connection reset before.
_PATIENT = 16
_FRAMES = 12  # of a fault, in the log


class ClientGoneError(Exception):
    """Nobody waits for the answer."""


class Exchange:
    """One request that is being answered, for so many seconds at most; `stop` ends it where it awaits something."""

    def __init__(self, seconds: float) -> None:
        self.clock = asyncio.timeout(seconds)
        self.arrived = time.perf_counter()
        #: What the client is told where the clock ends the request; None if it is not there.
        self.verdict: ApiError | None = ApiError(
            504, f"the request was not done within {seconds:g} seconds", code="timeout"
        )
        self.started = self.complete = False  # the answer
        self.status = 499  # of a client that left before there was one

    def stop(self, verdict: ApiError | None) -> None:
        if not self.clock.expired():
            self.verdict = verdict
            self.clock.reschedule(0.0)


class ExchangeMiddleware:
    """The part of the server around the application: every request is attended by it.

    It reads the body, up to its limit, and answers for what goes wrong where the application did not.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        guard: Guard,
        in_flight: InFlight,
        metrics: Metrics,
        endpoints: Set[str],
    ) -> None:
        self.app, self.settings, self.guard = app, settings, guard
        self.in_flight, self.metrics, self.endpoints = in_flight, metrics, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(self.settings.request_timeout)
        scope.setdefault("state", {})["exchange"] = exchange
        error = await self._outcome(exchange, scope, receive, send)
        if error is not None and not exchange.started:
            await error.response(scope, receive, _noting(send, exchange))
        self._note(scope, exchange)

    async def _outcome(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> ApiError | None:
        """What ended the request, if not its answer."""
        try:
            async with exchange.clock:
                with self.in_flight.during(exchange):
                    await self._handle(exchange, scope, receive, send)
        except ApiError as refused:
            return refused
        except ClientGoneError:
            return None
        except Exception as fault:
            if isinstance(fault, TimeoutError) and exchange.clock.expired():
                return exchange.verdict
            return internal(fault, self.settings)
        return None

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard.check(scope)
        if self.in_flight.closed is not None and scope["path"] not in ALWAYS:
            raise self.in_flight.closed()
        body = await _whole(scope, receive, self.settings.max_body)
        async with _watched(receive, exchange):
            await self.app(scope, _once(body), _noting(send, exchange))

    def _note(self, scope: Scope, exchange: Exchange) -> None:
        """Counts and logs a request that is over: by its endpoint, for an address can say anything."""
        path = scope["path"] if scope["path"] in self.endpoints else "other"
        endpoint: str = scope["route"].path if "route" in scope else path
        seconds = time.perf_counter() - exchange.arrived
        self.metrics.request(endpoint, exchange.status, seconds)
        log.info("%s %s: %d in %.3f s", scope["method"], endpoint, exchange.status, seconds)


class InFlight:
    """The requests that are being answered; while `closed`, which says why, no others are let in."""

    def __init__(self) -> None:
        self.closed: Callable[[], ApiError] | None = None
        self._all: set[Exchange] = set()

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def during(self, exchange: Exchange) -> Iterator[None]:
        self._all.add(exchange)
        try:
            yield
        finally:
            self._all.discard(exchange)

    async def drain(self, timeout: float, hurried: Callable[[], bool]) -> None:
        """Lets those that are there finish, unless it is `hurried`; who is not done by then is told so."""
        self.closed = stopping
        end = time.perf_counter() + timeout
        while self._all and time.perf_counter() < end and not hurried():
            await asyncio.sleep(0.02)
        for exchange in tuple(self._all):
            exchange.stop(stopping())
        while self._all:  # until they have been told
            await asyncio.sleep(0.02)


def starting() -> ApiError:
    message = (
        "the server is starting: steps are being compiled, which can take minutes; ask again later"
    )
    return ApiError(503, message, headers={"Retry-After": "5"})


def stopping() -> ApiError:
    return ApiError(503, "the server is stopping; ask again later", headers={"Retry-After": "5"})


def internal(fault: Exception, settings: Settings) -> ApiError:
    """What is said of a fault of ours: to the client nothing of it, to the log where it came from."""
    where = "".join(traceback.format_tb(fault.__traceback__, limit=-_FRAMES))
    said = f": {fault}" if settings.log_prompts else ""  # a message may quote what was asked
    log.error("a request failed with %s%s\n%s", type(fault).__name__, said, where)
    return ApiError(500, "the server failed on this request; other requests are not affected")


async def _whole(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body; 413 where it is longer than `limit` bytes, whether it says so or not."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"0")
    if b"expect" in headers and length.isdigit() and int(length) > limit:
        raise _too_large(limit)  # before any of it is sent
    body, n = bytearray(), 0
    async for part in _parts(receive):
        n += len(part)
        if n <= limit:
            body += part
        elif n > _PATIENT * limit:
            break
    if n > limit:
        raise _too_large(limit)
    return bytes(body)


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _too_large(limit: int) -> ApiError:
    message = f"the body is longer than {limit} bytes, the most that this server reads"
    return ApiError(413, message, headers={"Connection": "close"})


def _once(body: bytes) -> Receive:
    """Gives a body that was read, and then nothing: who leaves is not the application's affair."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


def _noting(send: Send, exchange: Exchange) -> Send:
    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.started, exchange.status = True, message["status"]
        exchange.complete |= message["type"] == "http.response.body" and not message.get(
            "more_body", False
        )
        await send(message)

    return noting


@asynccontextmanager
async def _watched(receive: Receive, exchange: Exchange) -> AsyncIterator[None]:
    """Ends the request when its client leaves."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not exchange.complete:  # else it is the end of the answer that was seen
            exchange.stop(None)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
