"""Server-sent events: any text survives the framing, and a stream never ends in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from engine import Engine
from engine.generate.answer import TokenLogprob
from engine.server import logprobs, stream
from engine.server.errors import ApiError
from engine.server.exchange import Exchange
from engine.server.logprobs import Names
from engine.server.stream import EventStream, event
from tests.server.serving import NAME, Client, serving

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

    exchange = Exchange(within)
    async with exchange.clock:
        if stop is not None:
            exchange.verdict = stop
        response = await EventStream.begun(events, lambda fault: ApiError(500, repr(fault)))
        scope = {"type": "http", "state": {"exchange": exchange}}
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


# -- what the events say ---------------------------------------------------------------------------

HELLO = [{"role": "user", "content": "Hello"}]
ASKED: dict[str, Any] = {"model": NAME, "max_tokens": 5, "temperature": 1.0, "seed": 1}


@pytest.mark.parametrize("n", [1, 2])
def test_the_parts_of_a_chat_come_in_their_order(server: Client, n: int) -> None:
    """Its role once, then its text, then one finish reason without text; and the usage last of all."""
    asked = {**ASKED, "messages": HELLO, "n": n, "stream_options": {"include_usage": True}}
    *chunks, last = server.chunks("/v1/chat/completions", asked)
    for index in range(n):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        first, *middle, end = choices
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert all(list(choice["delta"]) == ["content"] for choice in middle)
        assert all(choice["finish_reason"] is None for choice in choices[:-1])
        assert (end["delta"], end["finish_reason"]) == ({}, "length")
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 5 * n)
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in (*chunks, last)}) == 1


def test_the_first_part_of_a_chat_has_what_is_said_of_its_prompt(server: Client) -> None:
    """As the whole answer has it, beside the choices: its ids and log-probabilities."""
    fields = ("prompt_token_ids", "prompt_logprobs")
    asked = {**ASKED, "messages": HELLO, "n": 2, "return_token_ids": True, "prompt_logprobs": 1}
    whole = server.get("/v1/chat/completions", asked)
    first, *others = server.chunks("/v1/chat/completions", asked)
    assert [first[name] for name in fields] == [whole[name] for name in fields]
    assert len(whole["prompt_token_ids"]) == len(whole["prompt_logprobs"]) > 1
    assert all(name not in chunk for chunk in others for name in fields)


def test_an_echo_is_said_once_and_offsets_count_from_its_beginning(server: Client) -> None:
    prompts = ["Once upon", "The sky"]
    asked = {**ASKED, "prompt": prompts, "n": 2, "echo": True, "logprobs": 0, "temperature": 0}
    whole = server.get("/v1/completions", asked)["choices"]
    chunks = server.chunks("/v1/completions", asked)
    for choice, prompt in zip(whole, [p for p in prompts for _ in range(2)], strict=True):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert parts[0]["text"] == prompt
        assert "".join(part["text"] for part in parts) == choice["text"]
        said = choice["logprobs"]
        assert said["token_logprobs"][0] is None and None not in said["token_logprobs"][1:]
        for name, values in said.items():
            if name != "token_logprobs" and name != "top_logprobs":
                streamed = [v for part in parts for v in (part["logprobs"] or {}).get(name, ())]
                assert streamed == values, name
        assert said["text_offset"] == sorted(said["text_offset"])
        n_prompt = len(said["tokens"]) - 5
        assert said["text_offset"][n_prompt] == len(prompt)


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_is_echoed_without_an_answer(server: Client, logprobs: int | None) -> None:
    """With its log-probabilities, where they are asked for: what evaluations want of a model."""
    names = ("generated_tokens_total", "time_to_first_token_seconds_count")
    before = [server.metric(name) for name in names]
    asked = {**ASKED, "prompt": "Once upon", "echo": True, "logprobs": logprobs, "max_tokens": 0}
    answer = server.get("/v1/completions", asked)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Once upon", "length")
    n = answer["usage"]["prompt_tokens"]
    assert answer["usage"] == {"prompt_tokens": n, "completion_tokens": 0, "total_tokens": n}
    longer = server.get("/v1/completions", {**asked, "max_tokens": 1})["choices"][0]["logprobs"]
    short = longer and {name: values[:-1] for name, values in longer.items()}
    assert choice["logprobs"] == short
    chunks = server.chunks("/v1/completions", asked)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert (parts[0]["text"], parts[0]["logprobs"]) == ("Once upon", choice["logprobs"])
    assert all(part["text"] == "" for part in parts[1:])
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    after = [server.metric(name) - 1 for name in names]  # of the answer of one token
    assert after == before


def test_usage_counts_each_prompt_once(server: Client) -> None:
    usage = server.get("/v1/completions", {**ASKED, "prompt": [[5, 6], [7]], "n": 3})["usage"]
    assert usage == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}


def test_a_response_tells_what_the_cache_knew_of_its_prompt(folder: Path) -> None:
    """Nothing of one that is new; all but the last token of one that came before, also in a stream."""
    asked = {"input": "A text of many words, " * 9, "max_output_tokens": 2}
    with serving(Engine.load(folder, cache="paged")) as client:
        new, known = (client.get("/v1/responses", asked)["usage"] for _ in range(2))
        assert new["input_tokens_details"]["cached_tokens"] == 0
        assert known["input_tokens_details"]["cached_tokens"] == known["input_tokens"] - 1 > 30
        assert client.metric("prefix_hit_tokens_total") == known["input_tokens"] - 1
        *_, last = client.events("/v1/responses", asked)
        assert json.loads(last)["response"]["usage"] == known


# -- log-probabilities -----------------------------------------------------------------------------


class Spelled:
    """In the place of a tokenizer: two halves of one character, and a word."""

    def token_bytes(self, token: int) -> bytes:
        return [b"\xc3", b"\xa9", b"word"][token]


def test_what_cannot_be_had_has_a_number_and_halves_of_characters_have_names() -> None:
    names: Any = Names(Spelled(), by_id=False)  # type: ignore[arg-type]
    entry = TokenLogprob(2, -0.5, ((2, -0.5), (0, float("-inf")), (1, -9.0)))
    said = logprobs.of_completion([entry], [2], names)
    halves = {"bytes:\\xc3": -9999.0, "bytes:\\xa9": -9.0}
    assert said["top_logprobs"] == [{"word": -0.5, **halves}]
    (token,) = logprobs.of_chat([entry], names)["content"]
    assert [(top["token"], top["bytes"]) for top in token["top_logprobs"]] == [
        ("word", list(b"word")),
        ("\ufffd", [0xC3]),
        ("\ufffd", [0xA9]),
    ]
    assert json.loads(event(said).removeprefix(b"data: ")) == said
    assert logprobs.of_completion([entry], [2], Names(None, by_id=True))["tokens"] == ["token_id:2"]
