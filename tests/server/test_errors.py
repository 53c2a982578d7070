"""Errors have OpenAI's shape, one sentence each, and repeat neither what was asked nor where files are."""

from __future__ import annotations

import asyncio

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.types import Message, Receive, Scope, Send

from engine import Engine
from engine.errors import CacheFullError, LockstepError, RequestError, TooLongError
from engine.server import Settings
from engine.server.chat import ChatRequest
from engine.server.errors import ApiError, of_validation
from engine.server.frontend import Frontend
from engine.server.security import LocalOnly
from tests.server.serving import Client, serving

SECRET = "the password is swordfish"


def of(**fields: object) -> ApiError:
    """The error of a chat with these fields."""
    with pytest.raises(ValidationError) as wrong:
        ChatRequest.model_validate(fields)
    faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in wrong.value.errors()]
    return of_validation(RequestValidationError(faults).errors())


def test_a_fault_is_named_by_its_field_and_not_quoted() -> None:
    hello = {"role": "user", "content": "Hello"}
    for fields, param in (
        ({"messages": [hello], "temperature": SECRET}, "temperature"),
        ({"messages": [hello, {"role": "user", "content": [SECRET]}]}, "messages.1.content"),
        ({"messages": [{**hello, "role": SECRET}]}, "messages.0.role"),
        ({"messages": [hello], "stop": [SECRET, 1]}, "stop"),
        ({"messages": [hello], "tool_choice": SECRET}, "tool_choice"),
        ({}, "messages"),
        ({"messages": [hello], "suffix": SECRET}, "suffix"),
    ):
        error = of(**fields)
        assert error.status_code == 400
        assert error.param == param
        assert param in error.message and "swordfish" not in error.message


def test_many_faults_are_one_sentence() -> None:
    error = of(messages=[1] * 1000)
    assert len(error.message) <= 300


def test_every_error_has_the_four_fields() -> None:
    error = ApiError(429, "later,\nplease", headers={"Retry-After": "1"})
    assert error.document == {
        "error": {
            "message": "later, please",
            "type": "rate_limit_error",
            "param": None,
            "code": None,
        }
    }
    assert error.response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (RequestError("no"), 400, None),
        (TooLongError("no"), 400, "context_length_exceeded"),
        (CacheFullError("no"), 400, None),
        (LockstepError("no"), 500, None),
        (ApiError(404, "no", code="x"), 404, "x"),
        (KeyError("no"), 500, None),
    ],
)
def test_what_the_engine_raises_has_a_status(
    engine: Engine, fault: Exception, status: int, code: str | None
) -> None:
    error = Frontend(engine, Settings()).error(fault)
    assert (error.status_code, error.code) == (status, code)


def test_nobody_is_told_where_the_models_files_are(engine: Engine) -> None:
    frontend = Frontend(engine, Settings(served_name="tiny"))
    path = engine.checkpoint.path
    assert frontend.error(RequestError(f"{path} has no x")).message == "tiny has no x"
    assert SECRET not in frontend.error(ValueError(SECRET)).message


def test_the_log_has_a_fault_and_no_prompt(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    for shown in (False, True):
        caplog.clear()
        Frontend(engine, Settings(log_prompts=shown)).error(ValueError(SECRET))
        assert "ValueError" in caplog.text
        assert (SECRET in caplog.text) is shown


def test_a_key_is_the_whole_key_and_no_other(engine: Engine) -> None:
    with serving(engine, api_key="sesam-öffne") as client:
        key = "sesam-öffne".encode().decode("latin-1")
        for given, status in (
            (f"Bearer {key}", 200),
            (f"bearer  {key}", 200),
            (f"Bearer {key[:-1]}", 401),
            (f"Bearer {key}x", 401),
            ("Bearer ", 401),
            (key, 401),
            (f"Basic {key}", 401),
        ):
            assert status_of(client, "/v1/models", given) == status, given
            assert status_of(client, "/health", given) == 200
        assert status_of(client, "/v1/models", "") == 401
        assert status_of(client, "/metrics", "") == 401


def status_of(client: Client, path: str, authorization: str) -> int:
    answer = client.ask(path, headers={"Authorization": authorization})
    assert answer.status == 200 or answer.error["code"] == "invalid_api_key"
    return answer.status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.168.0.1", 403),
        ("[::2]", 403),
        ("", 403),
    ],
)
def test_without_a_key_websites_are_not_answered_in_this_machines_name(
    host: str, status: int
) -> None:
    said = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        said.append(message)

    scope = {"type": "http", "headers": [(b"host", host.encode())]}
    asyncio.run(LocalOnly(app)(scope, receive, send))
    assert said[0]["status"] == status
