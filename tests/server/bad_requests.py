"""Requests that make no sense, each with the status that it deserves and a word of the sentence that says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.server.serving import NAME

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, TOKENIZE, DETOKENIZE = "/v1/responses", "/tokenize", "/detokenize"
HELLO = [{"role": "user", "content": "Hello"}]
#: What makes a request of each kind a good one.
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": NAME, "messages": HELLO, "max_tokens": 2, "temperature": 0},
    COMPLETIONS: {"model": NAME, "prompt": "Hello", "max_tokens": 2, "temperature": 0},
    RESPONSES: {"model": NAME, "input": "Hello", "max_output_tokens": 2, "temperature": 0},
    TOKENIZE: {"model": NAME, "prompt": "Hello"},
    DETOKENIZE: {"model": NAME, "tokens": [5, 6]},
}
LONE = "\ud800"
DEEP = 100_000  # brackets; Python's own limits are far below
MAX_BODY = 2**20  # of the server that is asked


@dataclass(frozen=True)
class Bad:
    """What is sent: a body, bytes as they are; one of `words` is in the sentence or names the parameter."""

    name: str
    path: str
    body: bytes
    words: tuple[str, ...] = ("",)
    status: int = 400
    method: str = "POST"
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.path.rsplit('/', 1)[1]}: {self.name}"


class Absent:
    """In the place of a value: the field is left out."""


#: By path: fields with a value that is wrong, by itself, in a request that is good without it.
WRONG: dict[str, list[tuple[str, Any]]] = {
    CHAT: [
        ("model", 5),
        ("messages", Absent),
        ("messages", None),
        ("messages", []),
        ("messages", "Hello"),
        ("messages", {"role": "user", "content": "x"}),
        ("messages", [1]),
        ("messages", [{}]),
        ("messages", [{"content": "x"}]),
        ("messages", [{"role": "robot", "content": "x"}]),
        ("messages", [{"role": 5, "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("messages", [{"role": "user", "content": LONE}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": LONE}]}]),
        ("messages", [{"role": "assistant", "content": None, "tool_calls": "x"}]),
        ("temperature", -1),
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", [1]),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", "0.9"),
        ("n", 0),
        ("n", -1),
        ("n", 1.5),
        ("n", True),
        ("n", 10**9),
        ("n", 10**400),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", "ten"),
        ("max_tokens", 1.5),
        ("max_completion_tokens", -1),
        ("seed", 1.5),
        ("seed", 2**70),
        ("seed", "one"),
        ("presence_penalty", "x"),
        ("presence_penalty", float("-inf")),
        ("frequency_penalty", {}),
        ("logit_bias", []),
        ("logit_bias", {"word": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"1000000": 1}),
        ("logit_bias", {"5": "x"}),
        ("logit_bias", {"5": float("inf")}),
        ("logprobs", "yes"),
        ("top_logprobs", -1),
        ("top_logprobs", 10**6),
        ("stop", 5),
        ("stop", [1]),
        ("stop", ""),
        ("stop", [""]),
        ("stop", [["a"]]),
        ("stream", "yes"),
        ("stream_options", "usage"),
        ("tools", "weather"),
        ("tools", [1]),
        ("tools", [{}]),
        ("tools", [{"type": "function", "function": {"name": 5}}]),
        ("response_format", "json"),
        ("response_format", {}),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "banana"}}},
        ),
        (
            "response_format",
            {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "("}},
            },
        ),
    ],
    COMPLETIONS: [
        ("prompt", 5),
        ("prompt", {}),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [1.5]),
        ("prompt", [True]),
        ("prompt", [-1]),
        ("prompt", [10**9]),
        ("prompt", [10**400]),
        ("prompt", [1, "a"]),
        ("prompt", [["a"]]),
        ("prompt", [None]),
        ("prompt", LONE),
        ("prompt", "word " * 5000),
        ("prompt", [5] * 600),
        ("echo", "yes"),
        ("logprobs", -1),
        ("logprobs", 10**6),
        ("best_of", 0),
        ("suffix", "."),
        ("stop", [LONE]),
        ("max_tokens", 0),
        ("max_tokens", -1),
    ],
    RESPONSES: [
        ("input", Absent),
        ("input", 5),
        ("input", []),
        ("input", [1]),
        ("input", LONE),
        ("instructions", 5),
        ("max_output_tokens", -1),
        ("temperature", "hot"),
        ("text", {"format": {"type": "xml"}}),
        ("previous_response_id", "resp_1"),
        ("background", True),
    ],
    TOKENIZE: [("prompt", Absent), ("prompt", 5), ("prompt", LONE)],
    DETOKENIZE: [
        ("tokens", Absent),
        ("tokens", 5),
        ("tokens", ["a"]),
        ("tokens", [1.5]),
        ("tokens", [-1]),
        ("tokens", [10**9]),
    ],
}

#: Bodies that are no request at all, by what is wrong with them.
NO_REQUEST: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"  \n ",
    "half an object": b'{"model": "tiny", "messages": [',
    "two objects": json.dumps(GOOD[CHAT]).encode() * 2,
    "a comma too many": b'{"model": "tiny",}',
    "Python's quotes": b"{'model': 'tiny'}",
    "a list": b"[]",
    "a string": b'"Hello"',
    "a number": b"5",
    "null": b"null",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "bytes that are no UTF-8": b'{"model": "tiny", "messages": "\xff\xfe"}',
    "UTF-16 of another order than it says": json.dumps(GOOD[CHAT]).encode("utf-16")[1:],
    "a body of zeros": bytes(1000),
    "an integer of 10,000 digits": b'{"model": "tiny", "prompt": ' + b"1" * 10_000 + b"}",
}


def bad_requests() -> Iterator[Bad]:
    for path, fields in WRONG.items():
        for name, value in fields:
            request = {**GOOD[path], name: value}
            if value is Absent:
                del request[name]
            shown = "left out" if value is Absent else ascii(value)
            if len(shown) > 80:
                shown = f"{shown[:40]}...{shown[-40:]}"
            body = json.dumps(request).encode()
            # A token that is none is named, and so is a schema that is none.
            yield Bad(f"{name} {shown}", path, body, (name.split("_")[0], "token id", "Schema"))
    for name, body in NO_REQUEST.items():
        yield Bad(name, CHAT, body)
        yield Bad(name, RESPONSES, body)
    yield from _together()
    yield from _about_http()


def _together() -> Iterator[Bad]:
    """Fields that are wrong beside each other, or far inside."""
    for path, more, word in (
        (CHAT, {"top_logprobs": 2}, "logprobs"),
        (COMPLETIONS, {"n": 3, "best_of": 2}, "best_of"),
        (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
        (CHAT, {"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
    ):
        yield Bad(str(more), path, json.dumps({**GOOD[path], **more}).encode(), (word,))
    for path, field in ((CHAT, "messages"), (COMPLETIONS, "prompt"), (CHAT, "tools")):
        deep = b'{"model": "tiny", "%s": %s}' % (field.encode(), b"[" * DEEP + b"]" * DEEP)
        yield Bad(f"deep {field}", path, deep)
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = json.dumps({**GOOD[CHAT], "response_format": asked}).encode()
    yield Bad("a deep schema", CHAT, body)


def _about_http() -> Iterator[Bad]:
    good = json.dumps(GOOD[CHAT]).encode()
    yield Bad("unknown model", CHAT, good.replace(b"tiny", b"nobody"), ("nobody",), 404)
    yield Bad("a model in half a character", CHAT, good.replace(b"tiny", b"\\ud800"))
    yield Bad("a field that nobody knows", CHAT, good.replace(b"model", b"modell"), ("modell",))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        yield Bad(f"content type {kind}", CHAT, good, ("application/json",), 415, content_type=kind)
    large = json.dumps({**GOOD[CHAT], "user": "x" * MAX_BODY}).encode()
    yield Bad("too large", CHAT, large, (f"{MAX_BODY}",), 413)
    yield Bad("an unknown path", "/v1/nothing", good, status=404)
    yield Bad("no embeddings", "/v1/embeddings", good, status=404)
    for method in ("GET", "PUT", "DELETE"):
        yield Bad(f"{method} is no way to ask", CHAT, good, status=405, method=method)
    yield Bad("a model that is not there", "/v1/models/nobody", b"", ("nobody",), 404, "GET")
