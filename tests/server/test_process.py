"""A server that is told to end does so in order, and one that is killed leaves nothing that hinders the next."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import served
from tests.server.serving import NAME, PATIENCE, Client, speaking_folder, wait_until

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers can be so long that they take many seconds."""
    return speaking_folder(tmp_path_factory.mktemp("served") / "long", context=16384)


def asked(tokens: int, prompt: list[int], stream: bool = False) -> dict[str, Any]:
    return {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }


def outcome(client: Client, request: dict[str, Any]) -> str:
    """What became of a request: "answered" in full, or "told" of an error in OpenAI's shape.

    Anything else, such as a connection that closes in the midst of a stream, fails.
    """
    if not request["stream"]:
        answer = client.ask(COMPLETIONS, request)
        if answer.status == 200:
            assert answer.json["choices"][0]["finish_reason"] == "length"
            return "answered"
        assert answer.status in (503, 504) and answer.error
        return "told"
    with client.open(COMPLETIONS, request) as response:
        if response.status != 200:
            assert response.status == 503
            assert json.loads(response.read())["error"]["message"]
            return "told"
        events = [line[6:] for line in response.read().decode().split("\n\n") if line]
    if events[-1] == "[DONE]" and '"error"' not in events[-2]:
        assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        return "answered"
    (error,) = (json.loads(event)["error"] for event in events if '"error"' in event)
    assert error["message"]
    return "told"


def under_load(
    client: Client, tokens: int, then: Callable[[], None]
) -> tuple[list[str], list[str]]:
    """What became of eight requests that ran when a signal was sent, and of some that came after."""
    with ThreadPoolExecutor(16) as clients:
        running = [
            clients.submit(outcome, client, asked(tokens, [5 + i], stream=i % 2 == 0))
            for i in range(8)
        ]
        wait_until(lambda: client.metric("requests_running") == 8, "all of them run")
        then()
        wait_until(lambda: not is_ready(client), "the signal is heard")
        late = [let_in(client) for _ in range(4)]
        return [one.result(PATIENCE) for one in running], late


def is_ready(client: Client) -> bool:
    try:
        return client.ask("/ready").status == 200
    except (OSError, HTTPException):
        return False


def let_in(client: Client) -> str:
    """What becomes of a request that comes while the server ends."""
    try:
        return outcome(client, asked(1, [5]))
    except (OSError, HTTPException):
        return "not let in"


def test_killed_and_started_anew_it_is_as_before_and_lets_its_guests_finish(long: Path) -> None:
    """kill -9 in the midst of answers; then the same port, no stale state, and an end in order."""
    with served(long) as (process, client):
        before = client.get(COMPLETIONS, asked(5, [7, 9]))["choices"]
        with ThreadPoolExecutor(4) as clients:
            broken = [
                clients.submit(client.ask, COMPLETIONS, asked(10_000, [5 + i])) for i in range(4)
            ]
            wait_until(lambda: client.metric("requests_running") == 4, "all of them run")
            process.kill()
            for one in broken:
                with pytest.raises((OSError, HTTPException)):
                    one.result(PATIENCE)
    with served(long, "--shutdown-timeout", "100", port=client.port) as (process, again):
        assert again.port == client.port
        assert again.ask("/ready").status == 200
        assert again.at_rest
        assert again.metric("cache_blocks_free") == again.metric("cache_blocks_total")
        assert again.get(COMPLETIONS, asked(5, [7, 9]))["choices"] == before
        ran, late = under_load(again, 400, process.terminate)
        assert ran == ["answered"] * 8
        assert set(late) <= {"told", "not let in"}
        assert process.wait(PATIENCE) == 0


def test_who_cannot_finish_in_time_is_told(long: Path) -> None:
    """Ctrl-C: answers of thousands of tokens, and a second to end."""
    with served(long, "--shutdown-timeout", "1") as (process, client):
        started = []

        def interrupt() -> None:
            process.send_signal(signal.SIGINT)
            started.append(time.monotonic())

        ran, late = under_load(client, 16_000, interrupt)
        assert ran == ["told"] * 8
        assert set(late) <= {"told", "not let in"}
        assert process.wait(PATIENCE) == 0
        # The limit is a second; the rest is for a machine that is busy.
        assert time.monotonic() - started[0] < 30
