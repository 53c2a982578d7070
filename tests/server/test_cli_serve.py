"""`lockstep serve`: what the command line refuses, and what reaches the server."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.cli import app
from engine import Engine
from engine.command import run
from engine.server import Settings, serve
from tests.cli.command_line import TINY, is_one_sentence

ANYWHERE = "0.0.0.0"  # noqa: S104 (nothing listens there)
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.delenv("LOCKSTEP_API_KEY", raising=False)

    def call(*argv: object) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run(app, "lockstep", ["serve", *map(str, argv)])
        return (status, *capfd.readouterr())

    return call


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a model was loaded with and a server started with; neither is done."""
    given: dict[str, Any] = {}

    def load(model: str, **options: Any) -> SimpleNamespace:
        given.update(model=model, options=options)
        return SimpleNamespace(step_tokens=512)

    def listen(engine: SimpleNamespace, settings: Settings, host: str, port: int) -> None:
        given.update(engine=engine, settings=settings, at=(host, port))

    monkeypatch.setattr("engine.Engine.load", load)
    monkeypatch.setattr("engine.server.serve", listen)
    return given


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--host", ANYWHERE), "API key"),
        (("--host", "::"), "API key"),
        (("--host", "example.org"), "API key"),
        (("--api-key", " "), "empty"),
        (("--max-queue", "-1"), "max_queue"),
        (("--max-body", "0"), "max_body"),
        (("--request-timeout", "0"), "request_timeout"),
        (("--cache", "ring"), "--cache"),
        (("--port", "many"), "--port"),
        (("--step-tokens", "0"), "--step-tokens"),
        (("--dtype", "float8"), "float8"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_before_a_model_is_read(
    call: Call, options: tuple[str, ...], word: str
) -> None:
    status, out, err = call(TINY, *options)
    assert (status, out) == (2, "")
    assert is_one_sentence(err) and word in err


@pytest.mark.parametrize("at_work", [False, True])
def test_the_end_does_not_wait_for_threads(
    call: Call, started: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    ends: list[int] = []
    monkeypatch.setattr("engine.server.serve", lambda *_: at_work)
    monkeypatch.setattr("os._exit", ends.append)
    assert call(TINY)[0] == 0
    assert ends == [0] * at_work


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_key(call: Call, started: dict[str, Any], host: str) -> None:
    assert call(TINY, "--host", host)[0] == 0
    assert started["at"] == (host, 8000)


def test_elsewhere_a_key_or_a_waiver_is_needed(
    call: Call, started: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(TINY, "--host", ANYWHERE, "--no-auth")[0] == 0
    assert started["settings"].api_key is None
    assert call(TINY, "--host", ANYWHERE, "--api-key", "k")[0] == 0
    monkeypatch.setenv("LOCKSTEP_API_KEY", "from the environment")
    assert call(TINY, "--host", ANYWHERE)[0] == 0
    assert started["settings"].api_key == "from the environment"


def test_a_key_of_the_environment_is_not_shown(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_API_KEY", "swordfish")
    status, out, _ = call("--help")
    assert status == 0 and "LOCKSTEP_API_KEY" in out and "swordfish" not in out


def test_every_option_reaches_the_server(call: Call, started: dict[str, Any]) -> None:
    call(
        *("smollm2-135m", "--port", 0, "--api-key", "k", "--served-name", "name", "--max-queue", 3),
        *("--max-body", 99, "--request-timeout", 2.5, "--shutdown-timeout", 0.5, "--log-prompts"),
        *(
            "--cors-origin",
            "https://a.org",
            "--cors-origin",
            "https://b.org",
            "--no-docs",
            "--no-auth",
        ),
        *("--dtype", "bfloat16", "--cache-tokens", 64, "--cache-dtype", "int8", "--compiled"),
        *("--batch-invariant", "--quantization", "int8", "--step-tokens", 33),
    )
    assert started["settings"] == Settings(
        "name", "k", 3, 99, 2.5, 0.5, ("https://a.org", "https://b.org"), True, False, True
    )
    assert started["at"] == ("127.0.0.1", 0)
    assert started["engine"].step_tokens == 33
    assert started["options"] == {
        "device": "cpu",
        "dtype": "bfloat16",
        "progress": True,
        "cache": "paged",
        "cache_tokens": 64,
        "cache_dtype": "int8",
        "batch_invariant": True,
        "compiled": True,
        "quantization": "int8",
    }


def test_passes_are_short_on_a_cpu(call: Call, started: dict[str, Any]) -> None:
    """So that nobody waits a second for the next token while a prompt is read."""
    call("smollm2-135m")
    assert started["engine"].step_tokens == 64
    call("smollm2-135m", "--device", "cuda")
    assert started["engine"].step_tokens == 512


def test_a_model_is_served_by_the_name_that_it_is_asked_for(
    call: Call, started: dict[str, Any]
) -> None:
    call("smollm2-135m")
    assert started["settings"].served_name == "smollm2-135m"


def test_a_missing_extra_is_named(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("engine.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    status, _, err = call(TINY)
    assert status == 2 and is_one_sentence(err) and "lockstep-llm[serve]" in err


def test_an_address_that_is_taken_is_refused(engine: Engine) -> None:
    from engine.errors import RequestError

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RequestError, match="cannot listen"):
            serve(engine, Settings(), port=taken.getsockname()[1])
    with pytest.raises(RequestError, match="API key"):
        serve(engine, Settings(), host=ANYWHERE)
