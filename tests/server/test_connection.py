"""Who connects and then does nothing is let go; who waits for an answer is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from engine.server import connection
from tests.server.serving import PATIENCE, wait_until

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def slow(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers after several looks at the connection."""
    await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"at last"})


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """Says more than fits between a server and a client that does not read, and gives up."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    try:
        async with asyncio.timeout(0.3):
            while True:
                body = bytes(2**16)
                await send({"type": "http.response.body", "body": body, "more_body": True})
    except TimeoutError:
        pass


@contextmanager
def listening(app: object) -> Iterator[tuple[uvicorn.Server, int]]:
    config = uvicorn.Config(app, http=connection.Connection, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, "the server starts")
            yield server, listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join(PATIENCE)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STILL", 0.2)


@pytest.mark.parametrize("sent", [b"", b"GET /hea", HEAD], ids=["nothing", "a line", "half a head"])
def test_who_never_finishes_a_head_is_let_go(sent: bytes) -> None:
    with listening(slow) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(PATIENCE)
        client.sendall(sent)
        assert client.recv(1) == b""


def test_who_never_reads_the_end_is_let_go() -> None:
    with listening(endless) as (server, port), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(HEAD + b"\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1, "it is let in")
        wait_until(lambda: not server.server_state.connections, "it is let go")


def test_who_waits_for_an_answer_gets_it_and_may_ask_again() -> None:
    with listening(slow) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(PATIENCE)
        for _ in range(2):
            client.sendall(HEAD + b"\r\n")
            answer = b""
            while b"at last" not in answer:
                part = client.recv(2**16)
                assert part, answer
                answer += part
