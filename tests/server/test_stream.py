"""Server-sent events: any text survives the framing, and a stream never ends in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from engine.server import stream
from engine.server.attendance import Attendance
from engine.server.errors import ApiError
from engine.server.stream import EventStream, event

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_any_text_is_one_event_for_every_reader_of_lines(text: str) -> None:
    """Also for those that take U+2028, U+0085 or a form feed for the end of a line."""
    framed = event({"text": text + "\r\n\u2028\x85\x0b\x0c\x1c"}).decode()
    line, *rest = framed.splitlines()
    assert rest == [""] and framed.endswith("\n\n")
    assert json.loads(line.removeprefix("data: "))["text"].startswith(text)


def test_what_json_cannot_say_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON"):
        event({"logprob": float("-inf")})


async def said(
    events: AsyncGenerator[bytes],
    send: Callable[[Message], Awaitable[None]] | None = None,
    stop: ApiError | None = None,
    within: float = 100.0,
) -> list[dict[str, Any]]:
    """The messages of a stream that is sent, and stopped after so many seconds."""
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError("a stream asks nothing")

    async with asyncio.timeout(within) as clock:
        attendance = Attendance(clock, within)
        if stop is not None:
            attendance.verdict = stop
        response = await EventStream.begun(events, lambda fault: ApiError(500, repr(fault)))
        scope = {"type": "http", "state": {"attendance": attendance}}
        await response(scope, receive, send or keep)
    return [dict(message) for message in messages]


async def three() -> AsyncGenerator[bytes]:
    for part in (b"1", b"2", b"3"):
        yield part


def test_events_are_sent_as_they_come() -> None:
    start, *parts, last = asyncio.run(said(three()))
    assert (start["status"], dict(start["headers"])[b"content-type"]) == (
        200,
        b"text/event-stream; charset=utf-8",
    )
    assert b"content-length" not in dict(start["headers"])
    assert [part["body"] for part in parts] == [b"1", b"2", b"3"]
    assert all(part["more_body"] for part in parts)
    assert last == {"type": "http.response.body", "body": b"", "more_body": False}


def test_what_fails_before_the_first_event_has_a_status() -> None:
    async def failing() -> AsyncGenerator[bytes]:
        raise ApiError(400, "no")
        yield b""

    with pytest.raises(ApiError):
        asyncio.run(said(failing()))


def test_what_fails_later_is_an_event() -> None:
    async def failing() -> AsyncGenerator[bytes]:
        yield b"1"
        raise KeyError("x")

    _, first, error, last = asyncio.run(said(failing()))
    assert first["body"] == b"1"
    assert "KeyError" in json.loads(error["body"].removeprefix(b"data: "))["error"]["message"]
    assert last["more_body"] is False


def test_a_deadline_is_told_and_what_is_held_is_given_back() -> None:
    closed = []

    async def endless() -> AsyncGenerator[bytes]:
        try:
            yield b"1"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    _, first, error, last = asyncio.run(
        said(endless(), stop=ApiError(504, "too late"), within=0.05)
    )
    assert first["body"] == b"1" and b"too late" in error["body"]
    assert last["more_body"] is False
    assert closed == [True]


def test_who_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the next event nor for the error that ends the stream; what it holds is given back."""
    monkeypatch.setattr(stream, "PATIENCE", 0.05)
    closed = []

    async def events() -> AsyncGenerator[bytes]:
        try:
            yield b"1"
            yield b"2"
        finally:
            closed.append(True)

    async def stuck(message: Message) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        asyncio.run(said(events(), send=stuck, within=0.05))
    assert closed == [True]
