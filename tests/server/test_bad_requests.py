"""What makes no sense is refused with one sentence in OpenAI's shape, and the server is as healthy as before."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engine import Engine
from tests.server.bad_requests import CHAT, COMPLETIONS, GOOD, MAX_BODY, Bad, bad_requests
from tests.server.serving import PATIENCE, Client, serving

BAD = list(bad_requests())


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Client]:
    """One that takes small bodies, whose next answers are those that it gave before anything bad came."""
    with serving(engine, max_body=MAX_BODY) as client:
        before = good_answers(client)
        yield client
        assert good_answers(client) == before
        assert client.at_rest


def good_answers(client: Client) -> list[Any]:
    """What does not change from one time to the next of the answers to good requests."""
    answers = [client.get(path, request) for path, request in GOOD.items()]
    return [
        [answer.get(name) for name in ("choices", "tokens", "usage", "prompt")]
        for answer in answers
    ]


def test_there_are_enough_of_them() -> None:
    assert len(BAD) >= 60
    assert len({(bad.path, bad.name) for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bad_request_is_refused_with_a_sentence(server: Client, bad: Bad) -> None:
    headers = {"Content-Type": bad.content_type}
    answer = server.ask(bad.path, body=bad.body, method=bad.method, headers=headers)
    assert answer.status == bad.status, answer
    error = answer.error
    assert error["message"][-1] not in "\n :", error
    assert len(error["message"]) < 600
    said = f"{error['message']} {error['param']}"
    assert any(word in said for word in bad.words), error
    if bad.status == 400:
        assert error["type"] == "invalid_request_error"
    assert server.ask("/health").status == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_bad_is_refused_before_a_stream_begins(server: Client, path: str) -> None:
    """With a status, not with an event behind 200."""
    answer = server.ask(path, {**GOOD[path], "temperature": -1, "stream": True})
    assert (answer.status, answer.error["param"]) == (400, "temperature")


def test_a_body_that_does_not_say_its_size_is_counted(server: Client) -> None:
    """In chunks, as clients send what they make as they go."""
    piece = b"x" * 65536
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(4 * MAX_BODY // len(piece)):
                connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            connection.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it need not be read to its end
        assert connection.recv(12) == b"HTTP/1.1 413"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a handshake of TLS
        b"GET /health\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{}",
        b"\x00" * 100_000,
    ],
)
def test_what_is_no_request_of_http_hurts_nobody(server: Client, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(sent)
    assert server.ask("/health").status == 200


@pytest.mark.parametrize("text", ["<|eot|>", "<|start|>system<|end|>", "\x00", "\u202e", "\ufeff"])
def test_odd_texts_are_texts(server: Client, plain: Engine, text: str) -> None:
    """Control tokens that a user spells out are no control tokens; the tokens are those of the library."""
    messages = [{"role": "user", "content": text}]
    with_ids = {"return_token_ids": True}
    answer = server.get(CHAT, {**GOOD[CHAT], "messages": messages, **with_ids})
    assert answer["prompt_token_ids"] == plain.tokenizer.encode_chat(messages)
    completed = server.get(COMPLETIONS, {**GOOD[COMPLETIONS], "prompt": text, **with_ids})
    assert completed["choices"][0]["prompt_token_ids"] == plain.encode(text)


def test_a_key_is_asked_for(engine: Engine) -> None:
    """On every path that does or shows something; whether the server lives is no secret."""
    with serving(engine, api_key="sésame") as client:
        key = {"Authorization": "Bearer sésame".encode().decode("latin-1")}
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer s\xe9same"},
            {"Authorization": key["Authorization"].replace("Bearer", "Basic")},
            {"Authorization": key["Authorization"] + "x"},
        ):
            for path in ("/v1/models", CHAT, "/metrics", "/tokenize"):
                answer = client.ask(path, GOOD.get(path), headers=headers)
                assert answer.status == 401, (path, headers)
                assert "key" in answer.error["message"].lower()
        assert client.ask("/health", headers={"Authorization": ""}).status == 200
        assert client.ask(CHAT, GOOD[CHAT], headers=key).status == 200


def test_pages_of_others_are_not_let_in(server: Client, engine: Engine) -> None:
    """CORS is off, unless an origin is named."""
    origin = {"Origin": "http://elsewhere.test"}
    allowed = "access-control-allow-origin"
    assert allowed not in server.ask("/v1/models", headers=origin).headers
    with serving(engine, cors_origins=("http://elsewhere.test",)) as client:
        let_in = client.ask("/v1/models", headers=origin).headers
        assert let_in[allowed] == origin["Origin"]
        assert let_in["access-control-expose-headers"] == "Retry-After"
        other = {"Origin": "http://other.test"}
        assert allowed not in client.ask("/v1/models", headers=other).headers
        # OpenAI's client for browsers has headers of its own, and a browser asks for each of them.
        before = {"Access-Control-Request-Method": "POST"}
        named = {"Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}
        asked = client.ask(CHAT, method="OPTIONS", headers={**origin, **before, **named})
        assert asked.status == 200
        assert "x-stainless-lang" in asked.headers["access-control-allow-headers"]


def test_a_mistake_in_the_body_is_not_repeated_at_length(server: Client) -> None:
    body = json.dumps({**GOOD[CHAT], "temperature": "x" * 100_000}).encode()
    answer = server.ask(CHAT, body=body)
    assert (answer.status, answer.error["param"]) == (400, "temperature")
    assert len(answer.body) < 1000
