"""Deadlines, the queue, faults in the midst of a step, and the end of the server: each is told, and passes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from engine import Engine
from engine.errors import LockstepError, RequestError
from engine.server import Settings, build_app, serve
from engine.server.exchange import stopping
from engine.server.serve import Server
from tests.server.passes import passes
from tests.server.serving import NAME, PATIENCE, Answer, Client, serving, wait_until

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
LONG: dict[str, Any] = {"model": NAME, "prompt": "Hello", "max_tokens": 400, "ignore_eos": True}
SHORT = {**LONG, "max_tokens": 2, "temperature": 0}


@contextmanager
def failing(engine: Engine, after: int = 0) -> Iterator[None]:
    """Every forward pass fails but the first few."""
    seen = [0]

    def fail(*_: Any) -> None:
        seen[0] += 1
        if seen[0] > after:
            raise ZeroDivisionError("a fault in a step")

    handle = engine.decoder.embed.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def at_rest(client: Client) -> None:
    """Nobody is served, no block is held, and the next request is answered."""
    wait_until(lambda: client.at_rest, "nobody is served")
    assert client.metric("cache_blocks_free") == client.metric("cache_blocks_total")
    assert client.ask(COMPLETIONS, SHORT).status == 200


def test_a_deadline_is_told(engine: Engine) -> None:
    with serving(engine, request_timeout=0.5) as client:
        with passes(engine):
            answer = client.ask(COMPLETIONS, LONG)
            assert (answer.status, answer.error["code"]) == (504, "timeout")
        at_rest(client)


def test_a_fault_in_a_step_is_told_and_passes(server: Client, engine: Engine) -> None:
    with failing(engine), ThreadPoolExecutor(3) as clients:
        for answer in clients.map(lambda _: server.ask(COMPLETIONS, LONG), range(3)):
            assert (answer.status, answer.error["type"]) == (500, "server_error")
    at_rest(server)


@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES])
def test_a_fault_in_the_midst_of_a_stream_is_an_event(
    server: Client, engine: Engine, path: str
) -> None:
    asked = LONG if path == COMPLETIONS else {"model": NAME, "input": "Hello", "ignore_eos": True}
    with failing(engine, after=3):
        *events, last = map(json.loads, server.events(path, asked))
    if path == COMPLETIONS:
        assert last["error"]["type"] == "server_error"
    else:
        assert (last["type"], last["sequence_number"]) == ("error", len(events))
    assert events and all("error" not in event for event in events[:1])
    at_rest(server)


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_served_no_longer(engine: Engine, stream: bool) -> None:
    """Seen while a step is taken, whose result nobody takes any more."""
    app = build_app(engine, Settings(served_name=NAME))
    before = engine.counters.steps
    asyncio.run(leaving(app, engine, {**LONG, "stream": stream}))
    wait_until(lambda: engine.scheduler.idle, "nobody is served", 20)
    assert engine.pages.pool.available == engine.pages.pool.n
    assert engine.counters.steps - before <= 3


async def leaving(app: FastAPI, engine: Engine, asked: dict[str, Any]) -> None:
    """A client that leaves when its answer is under way."""
    begun, gone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    body: list[Message] = [
        {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}
    ]

    async def receive() -> Message:
        if body:
            return body.pop()
        await begun.wait()
        gone.set()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        assert not gone.is_set(), message

    def note(*_: Any) -> None:
        loop.call_soon_threadsafe(begun.set)

    handle = engine.decoder.embed.register_forward_pre_hook(note)
    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": COMPLETIONS,
        "headers": headers,
        "query_string": b"",
    }
    try:
        async with asyncio.timeout(20):
            await app(scope, receive, send)
    finally:
        handle.remove()


def test_the_queue_has_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two run and one waits; the fourth is told to come again, and one that is four by itself never can."""
    monkeypatch.setattr(engine, "max_batch", 2)
    with serving(engine, max_queue=1) as client, ThreadPoolExecutor(3) as clients:
        with passes(engine):
            inside: list[Future[Answer]] = [
                clients.submit(client.ask, COMPLETIONS, SHORT) for _ in range(3)
            ]
            wait_until(
                lambda: client.metric("requests_running") + client.metric("requests_waiting") == 3,
                "three are inside",
            )
            refused = client.ask(COMPLETIONS, SHORT)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert refused.error["code"] == "rate_limit_exceeded"
        assert [one.result(PATIENCE).status for one in inside] == [200] * 3
        many = client.ask(COMPLETIONS, {**SHORT, "n": 4})
        assert many.status == 400 and "4 answers" in many.error["message"]
        at_rest(client)


class Starting:
    """A server in a thread, whose warm-up waits for `go`."""

    def __init__(self, app: FastAPI, bound: socket.socket) -> None:
        self.go = Event()
        self.client = Client(bound.getsockname()[1])
        self.server = Server(app, app.state.frontend.settings, "127.0.0.1")
        self.thread = Thread(target=self.server.run, args=([bound],))

    def warm(self, progress: Callable[[int], None]) -> None:
        progress(4)
        assert self.go.wait(PATIENCE)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def starting(engine: Engine) -> Iterator[Starting]:
    app = build_app(engine, Settings(served_name=NAME))
    with socket.socket() as bound, pytest.MonkeyPatch.context() as patch:
        bound.bind(("127.0.0.1", 0))
        started = Starting(app, bound)
        patch.setattr(engine, "warm", started.warm)
        started.thread.start()
        try:
            wait_until(lambda: started.server.started, "it listens")
            yield started
        finally:
            started.go.set()
            started.stop()


def test_until_it_has_warmed_up_a_server_lives_and_is_not_ready(
    engine: Engine, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A minute or more, while graphs are compiled; its log says of how many sequences."""
    caplog.set_level(logging.INFO, "lockstep.server")
    with starting(engine) as started:
        client = started.client
        assert client.ask("/health").status == 200
        for path in ("/ready", COMPLETIONS, "/v1/models"):
            refused = client.ask(path, SHORT if path == COMPLETIONS else None)
            assert refused.status == 503 and "compiled" in refused.error["message"]
            assert refused.headers["retry-after"]
        assert capfd.readouterr().out == ""
        started.go.set()
        wait_until(lambda: client.ask("/ready").status == 200, "it is ready")
        assert client.ask(COMPLETIONS, SHORT).status == 200
        assert capfd.readouterr().out == f"serving {NAME} at {client.url}\n"
    assert "compiling a step of up to 4 sequences" in caplog.text


def test_a_server_that_warms_up_can_be_told_to_stop(engine: Engine) -> None:
    """At once: whoever started it knows that a thread is still at work."""
    with starting(engine) as started:
        started.stop()
        assert not started.go.is_set()


def test_a_server_that_cannot_warm_up_ends(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def warm(progress: Callable[[int], None]) -> None:
        raise LockstepError("a step cannot be compiled")

    monkeypatch.setattr(engine, "warm", warm)
    with pytest.raises(LockstepError, match="cannot be compiled"):
        serve(engine, Settings(), port=0)


def test_while_the_server_stops_nobody_is_let_in(engine: Engine) -> None:
    app = build_app(engine, Settings(served_name=NAME))
    app.state.frontend.in_flight.closed = stopping
    for path, status in (
        (COMPLETIONS, 503),
        ("/v1/models", 503),
        ("/ready", 503),
        ("/health", 200),
    ):
        start, body = asyncio.run(asked_of(app, path))
        assert start["status"] == status
        assert status == 200 or json.loads(body["body"])["error"]["message"]
        assert status == 200 or b"retry-after" in dict(start["headers"])


async def asked_of(app: FastAPI, path: str) -> list[Message]:
    """The messages with which an application answers a GET."""
    said: list[Message] = []
    body: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}

    async def receive() -> Message:
        if body:
            return body.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said


def test_an_engine_without_a_shared_cache_is_refused(plain: Engine) -> None:
    with pytest.raises(RequestError, match="paged"):
        build_app(plain, Settings())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue": -1},
        {"max_body": 0},
        {"request_timeout": 0},
        {"shutdown_timeout": -1},
        {"api_key": " "},
        {"api_key": "from a file\n"},
        {"api_key": "two\nlines"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        Settings(**wrong)


def test_tokens_are_counted(server: Client) -> None:
    names = ("prompt_tokens_total", "generated_tokens_total", "time_to_first_token_seconds_count")
    before = [server.metric(name) for name in names]
    answer = server.get(COMPLETIONS, {**SHORT, "n": 2, "max_tokens": 3, "ignore_eos": True})
    after = [server.metric(name) for name in names]
    usage = answer["usage"]
    assert [b - a for a, b in zip(before, after, strict=True)] == [
        usage["prompt_tokens"],
        usage["completion_tokens"],
        2,
    ]


def test_requests_are_counted_by_endpoint_and_status(engine: Engine) -> None:
    """Also those that come to none; an address that there is not has no series of its own."""
    with serving(engine, api_key="k", max_body=100) as client:
        client.ask(COMPLETIONS, SHORT)
        client.ask(COMPLETIONS, {**SHORT, "temperature": -1})
        client.ask(COMPLETIONS, {**SHORT, "user": "x" * 200})
        client.ask(COMPLETIONS, SHORT, headers={"Authorization": ""})
        client.ask("/v1/models/nobody")
        for i in range(3):
            client.ask(f"/no/{i}")
        text = client.ask("/metrics").body.decode()
    counted = re.findall(r'request_seconds_count\{endpoint="(.*)",status="(.*)"\} (.*)', text)
    assert {(endpoint, status): float(n) for endpoint, status, n in counted} == {
        (COMPLETIONS, "200"): 1,
        (COMPLETIONS, "400"): 1,
        (COMPLETIONS, "413"): 1,
        (COMPLETIONS, "401"): 1,
        ("/v1/models/{model:path}", "404"): 1,
        ("other", "404"): 3,
    }


def test_what_cannot_be_stopped_is_known(folder: Path) -> None:
    """Whoever asked is told in time; the thread goes on."""
    frontend = build_app(Engine.load(folder, cache="paged"), Settings()).state.frontend
    free = Event()

    async def in_vain() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await frontend.prepared(lambda: free.wait(PATIENCE), "inspections")

    assert not frontend.at_work
    asyncio.run(in_vain())
    assert frontend.at_work
    free.set()
    wait_until(lambda: not frontend.at_work, "it is done")
