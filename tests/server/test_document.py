"""Documents are made beside the event loop, and in pieces, between which others have their turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from engine import Engine
from engine.server import Settings, build_app, logprobs
from engine.server.document import DEPTH, document, pieces
from tests.server.serving import NAME, wait_until

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
LEAVES |= st.text(st.characters(exclude_categories=["Cs"]))
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text('aé"\\\n', max_size=3), inner)
)
ASKED = {"model": NAME, "max_tokens": 5, "ignore_eos": True, "n": 3}
MESSAGES = [{"role": "user", "content": "Hello"}]
BEATS = 50


@given(DOCUMENTS)
def test_a_document_is_what_json_makes_of_it(content: Any) -> None:
    said = document(content)
    assert json.loads(bytes(said.body)) == content
    assert said.headers["content-type"] == "application/json"


def test_no_piece_has_more_than_a_tokens_entry() -> None:
    top = [{"token": "word", "logprob": -1.5, "bytes": [1, 2, 3]}] * 20
    content = [{"token": "word", "logprob": -1.5, "top_logprobs": top}] * 100
    choices = [{"index": i, "logprobs": {"content": content}} for i in range(5)]
    said = list(pieces({"id": "x", "choices": choices}, DEPTH))
    assert max(map(len, said)) <= len(json.dumps(content[0]))


def test_what_json_cannot_say_is_in_no_document() -> None:
    with pytest.raises(ValueError, match="JSON"):
        document({"choices": [{"logprob": float("inf")}]})


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {**ASKED, "prompt": "Hello", "logprobs": 5}),
        (
            "/v1/completions",
            {**ASKED, "prompt": "Hello", "logprobs": 5, "echo": True, "stream": True},
        ),
        ("/v1/chat/completions", {**ASKED, "messages": MESSAGES, "logprobs": True}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 5, "top_logprobs": 5}),
    ],
    ids=["completion", "echo", "chat", "response"],
)
def test_the_loop_goes_on_while_an_answer_is_written(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    """It beats many times while the log-probabilities of one token are put in their form."""
    beats = [0]
    written: list[int] = []
    spelled = logprobs.Names.bytes

    def slow(names: logprobs.Names, token: int) -> list[int] | None:
        if not written:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            before = beats[0]
            wait_until(lambda: beats[0] >= before + BEATS, "the loop goes on")
        written.append(token)
        return spelled(names, token)

    monkeypatch.setattr(logprobs.Names, "bytes", slow)
    app = build_app(engine, Settings(served_name=NAME))
    start, *_ = asyncio.run(answered(app, path, fields, beats))
    assert start["status"] == 200
    assert len(written) >= 5


async def answered(
    app: FastAPI, path: str, fields: dict[str, Any], beats: list[int]
) -> list[Message]:
    """What an application says to a request, while the loop beats."""
    said: list[Message] = []
    body: list[Message] = [
        {"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}
    ]

    async def beat() -> None:
        while True:
            beats[0] += 1
            await asyncio.sleep(0)

    async def receive() -> Message:
        if not body:
            await asyncio.Event().wait()
        return body.pop()

    async def send(message: Message) -> None:
        said.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"",
    }
    beating = asyncio.create_task(beat())
    try:
        await app(scope, receive, send)
    finally:
        beating.cancel()
    return said
