"""A server in a thread, with a tiny model that speaks, and a client that shows what goes over the wire.

The client knows nothing but HTTP: what a test sends it sends, and an answer must be strict JSON or strictly
framed events.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from hypothesis import settings

from engine import Engine
from engine.server import Settings, build_app
from tests.engine import tiny

NAME = "tiny"
PATIENCE = 300.0  # seconds that anything may take on a machine that is busy, or paused

#: Shows every message and tool that it is given, so that a test can see what reaches the model.
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|start|>tools<|end|>{{ tools | tojson }}<|eot|>{% endif %}"
    "{% for message in messages %}<|start|>{{ message['role'] }}<|end|>"
    "{{ message['content'] or '' }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>{% endif %}"
)


def speaking_folder(folder: Path, context: int = 512) -> Path:
    """A random llama with a real tokenizer, and the chat template above."""
    tiny.text_folder(folder, max_position_embeddings=context)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "chat_template": TEMPLATE}
    path.write_text(json.dumps(config))
    return folder


def rounds(few: int, many: int) -> int:
    """How many of something: few in CI, many where the profile asks for more than its usual examples."""
    return many if settings.default.max_examples > 100 else few


@contextmanager
def serving(engine: Engine, **changes: Any) -> Iterator[Client]:
    """A client of a server in a thread of this process, on a free port of loopback."""
    app = build_app(engine, Settings(**{"served_name": NAME, **changes}))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        client = Client(bound.getsockname()[1], key=changes.get("api_key"))
        try:
            wait_until(lambda: server.started or not thread.is_alive(), "the server starts")
            assert server.started, "it ended at once"
            yield client
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server does not end"


def wait_until(holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Until `what` is so; an assertion where it never is."""
    until = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < until, f"{what}: not within {patience:g} s"
        time.sleep(0.005)


@dataclass(frozen=True)
class Answer:
    """What came back, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return strict_json(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, of which the shape is checked: OpenAI's four fields, and a sentence for a human."""
        document = self.json
        assert set(document) == {"error"}, document
        error: dict[str, Any] = document["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and len(error["message"]) > 10, error
        assert "Traceback" not in error["message"] and "\n" not in error["message"], error
        assert isinstance(error["type"], str), error
        assert error["param"] is None or isinstance(error["param"], str), error
        return error


def strict_json(text: bytes | str) -> Any:
    """A document without the constants that JSON does not have; bytes must be UTF-8."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    if isinstance(text, bytes):
        text = text.decode("utf-8")
    return json.loads(text, parse_constant=refuse)


@dataclass
class Client:
    """Talks to a port of loopback; each request has a connection of its own."""

    port: int
    key: str | None = None
    timeout: float = PATIENCE

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def open(
        self,
        path: str,
        document: Any = None,
        *,
        body: bytes | None = None,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """Sends a request, and reads the head of the answer; `body` goes as it is instead of `document`.

        The connection is closed in the end, whether or not all was read.
        """
        if document is not None:
            body = json.dumps(document).encode()
        given = {"Content-Type": "application/json", "Connection": "close"}
        if self.key is not None:
            given["Authorization"] = f"Bearer {self.key}"
        given |= headers or {}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        try:
            sent = {name: value for name, value in given.items() if value}
            connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def ask(self, path: str, document: Any = None, **details: Any) -> Answer:
        with self.open(path, document, **details) as response:
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())

    def get(self, path: str, document: Any = None, **details: Any) -> Any:
        """The document of an answer that must be a good one."""
        answer = self.ask(path, document, **details)
        assert answer.status == 200, answer
        assert answer.headers["content-type"].startswith("application/json")
        return answer.json

    def events(self, path: str, document: dict[str, Any]) -> Iterator[str]:
        """The data of the events of a stream as they come; closing the generator closes the connection."""
        with self.open(path, {**document, "stream": True}) as response:
            assert response.status == 200, response.read()
            kind = response.headers["Content-Type"]
            assert kind.startswith("text/event-stream"), kind
            yield from framed(response)

    def chunks(self, path: str, document: dict[str, Any]) -> list[dict[str, Any]]:
        """All chunks of a stream, which must end as it should."""
        *chunks, last = self.events(path, document)
        assert last == "[DONE]"
        return [strict_json(chunk) for chunk in chunks]

    def metric(self, name: str) -> float:
        """The value of a gauge or counter without labels, or the sum over its labels."""
        text = self.ask("/metrics").body.decode()
        found = re.findall(rf"^lockstep_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no lockstep_{name} among the metrics"
        return sum(map(float, found))

    @property
    def at_rest(self) -> bool:
        """Whether nobody is served, or waits."""
        return self.metric("requests_running") == self.metric("requests_waiting") == 0


def framed(response: HTTPResponse) -> Iterator[str]:
    """The data of server-sent events; an assertion for anything that is no event of one line of data."""
    data: str | None = None
    for raw in iter(response.readline, b""):
        line = raw.decode("utf-8")
        assert line.endswith("\n"), "the stream ends within a line"
        line = line.removesuffix("\n").removesuffix("\r")
        if line == "":
            assert data is not None, "an event without data"
            yield data
            data = None
        elif line.startswith("data: "):
            assert data is None, "data in several lines"
            data = line.removeprefix("data: ")
        else:
            assert line.startswith((":", "event: ")), line
    assert data is None, "the stream ends within an event"
