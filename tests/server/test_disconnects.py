"""A client that leaves, whenever it does, takes nothing with it: its blocks are free two steps later at most."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from tests.server.passes import Passes, passes
from tests.server.serving import NAME, PATIENCE, Client, rounds, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = {"model": NAME, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
PASSES_AFTER = 2


def noticed(server: Client) -> None:
    """The server's event loop has come round several times, and has seen who is gone."""
    for _ in range(5):
        assert server.ask("/health").status == 200


def leave(server: Client, held: Passes, when: str, path: str, prompt: list[int]) -> None:
    """Asks for a long answer and goes: while the prompt is read, or in the midst of the answer, or unasked."""
    request = {**LONG, "prompt": prompt}
    if path == CHAT:
        text = "word " * (len(prompt) // 2)
        request = {**LONG, "messages": [{"role": "user", "content": text}]}
    if when == "decode":
        events = server.events(path, request)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(lambda: [next(events) for _ in range(4)])
            while (
                not reading.done()
            ):  # of some tokens nothing is said, as they are no whole character
                held.let(1)
                time.sleep(0.001)
            assert len(reading.result()) == 4
        held.close()
        events.close()
    else:
        with _sent(server, path, {**request, "stream": when == "prefill"}):
            held.wait()
    noticed(server)


@contextmanager
def _sent(server: Client, path: str, request: dict[str, Any]) -> Iterator[None]:
    """A request of which nobody reads the answer; in the end its connection is closed."""
    body = json.dumps(request).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as connection:
        connection.sendall(head.encode() + body)
        yield


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("when", ["prefill", "decode", "not streamed"])
def test_who_leaves_frees_its_blocks_within_two_steps(
    server: Client, engine: Engine, when: str, path: str
) -> None:
    """No pass is computed beyond those: each has to be let through here."""
    free = server.metric("cache_blocks_free")
    for i in range(rounds(2, 9)):
        prompt = [random.Random(i).randrange(5, 400) for _ in range(40 + 7 * i)]
        with passes(engine) as held:
            leave(server, held, when, path, prompt)
            assert server.metric("requests_running") + server.metric("requests_waiting") <= 1
            held.let(PASSES_AFTER)
            wait_until(lambda: server.at_rest, "nobody is served")
            assert server.metric("cache_blocks_free") == free


def test_many_who_leave_when_they_like_disturb_nobody(
    server: Client, engine: Engine, folder: Path
) -> None:
    """While others are served: what those are told is right, and so is the next answer."""
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    fresh = Engine.load(folder)
    prompts = [[5 + i, 9, 7 + i] for i in range(rounds(8, 30))]
    want = [fresh.generate(prompt, params).token_ids for prompt in prompts]
    free = server.metric("cache_blocks_free")

    def stay(prompt: list[int]) -> list[int]:
        asked = {**LONG, "prompt": prompt, "max_tokens": 30, "return_token_ids": True}
        return list(server.get(COMPLETIONS, asked)["choices"][0]["token_ids"])

    def go(seed: int) -> None:
        rng = random.Random(seed)
        prompt = [rng.randrange(5, 400) for _ in range(rng.randrange(1, 90))]
        if seed % 3 == 0:
            with _sent(server, COMPLETIONS, {**LONG, "prompt": prompt}):
                noticed(server)
            return
        events = server.events(COMPLETIONS, {**LONG, "prompt": prompt, "n": 1 + seed % 2})
        for _ in range(rng.randrange(1, 20)):
            next(events)
        events.close()

    with ThreadPoolExecutor(16) as clients:
        staying = [clients.submit(stay, prompt) for prompt in prompts]
        going = [clients.submit(go, seed) for seed in range(2 * len(prompts))]
        assert [future.result(PATIENCE) for future in staying] == want
        for future in going:
            future.result(PATIENCE)
    wait_until(lambda: server.at_rest, "nobody is served")
    assert server.metric("cache_blocks_free") == free
    assert stay(prompts[0]) == want[0]
