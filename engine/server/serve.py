"""The process that listens: a socket, signals, and an end that leaves nobody without an answer."""

from __future__ import annotations

import asyncio
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.errors import RequestError
from engine.generate import Engine
from engine.server.app import build_app
from engine.server.connection import Connection
from engine.server.exchange import starting
from engine.server.frontend import Frontend
from engine.server.security import LocalOnly
from engine.server.settings import Settings

_LAST_WORDS = 3  # seconds that clients have to read the ends of their answers when all are made


def serve(engine: Engine, settings: Settings, host: str = "127.0.0.1", port: int = 8000) -> bool:
    """Answers until SIGTERM or SIGINT, and then lets running requests finish; port 0 is any free one.

    Whether threads are still at work then, for requests that were told of the end: an interpreter
    waits for them before it ends. RequestError where the address cannot be had, or is reached from
    elsewhere without a key.
    """
    settings.check_exposed(host)
    app = build_app(engine, settings)
    with _listen(host, port) as listener:
        Server(app, settings, host).run([listener])
    frontend: Frontend = app.state.frontend
    return frontend.at_work


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise RequestError(f"cannot listen on {host}:{port}: {error}") from None


class Server(uvicorn.Server):
    """Says that it is ready when no step is left to compile, and ends in order."""

    def __init__(self, app: FastAPI, settings: Settings, host: str) -> None:
        local = settings.api_key is None and not settings.no_auth
        super().__init__(
            uvicorn.Config(
                LocalOnly(app) if local else app,
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LAST_WORDS,
            )
        )
        self._frontend: Frontend = app.state.frontend
        self._host = host

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._frontend.in_flight.closed = starting
        await super().startup(sockets)
        warm = asyncio.ensure_future(self._frontend.warmed())
        while not self.should_exit and not warm.done():
            await asyncio.wait([warm], timeout=0.1)
        if sockets and warm.done():
            warm.result()
            self._frontend.in_flight.closed = None
            host = f"[{self._host}]" if ":" in self._host else self._host
            port = sockets[0].getsockname()[1]
            sys.stdout.write(f"serving {self._frontend.name} at http://{host}:{port}\n")
            sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets running requests finish, the second does not."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit = self._frontend.settings.shutdown_timeout
        await self._frontend.in_flight.drain(limit, hurried=lambda: self.force_exit)
        await super().shutdown(sockets)
