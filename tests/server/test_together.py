"""Many at once: nothing is mixed, nothing is lost, and nobody waits in a queue that has no end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from engine import Engine, SamplingParams
from tests.server.passes import passes
from tests.server.serving import NAME, PATIENCE, Client, rounds, serving, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
AT_ONCE = 16


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """One whose answers do not depend on what else is computed, to the last bit."""
    return Engine.load(folder, cache="paged", batch_invariant=True)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    return Engine.load(folder, batch_invariant=True)


def requests(n: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of either kind, of random lengths, drawn and not, half of them streamed."""
    rng = random.Random(9)
    words = "lamp pier fog bell ship naïve 🦙 storm the a of".split()
    for i in range(n):
        text = f"{i} " + " ".join(rng.choices(words, k=rng.randrange(1, 40)))
        fields: dict[str, Any] = {
            "model": NAME,
            "max_tokens": rng.randrange(1, 25),
            "temperature": rng.choice([0, 0.7, 1.3]),
            "seed": i,
            "stop": rng.choice([[], ["e"], [" the"]]),
            "stream": i % 2 == 0,
            "return_token_ids": True,
        }
        if rng.random() < 0.5:
            yield COMPLETIONS, {**fields, "prompt": text}
        else:
            yield CHAT, {**fields, "messages": [{"role": "user", "content": text}]}


Told = tuple[str, list[int], str]


def told(server: Client, path: str, request: dict[str, Any]) -> Told:
    """Text, ids and reason of an answer; a stream must be of one answer from its beginning to its end."""
    if not request["stream"]:
        (choice,) = server.get(path, request)["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        return text, choice["token_ids"], choice["finish_reason"]
    chunks = server.chunks(path, request)
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    texts = [c["delta"].get("content") if path == CHAT else c["text"] for c in choices]
    ids = [token for choice in choices for token in choice.get("token_ids") or []]
    return "".join(text or "" for text in texts), ids, choices[-1]["finish_reason"]


def alone(engine: Engine, request: dict[str, Any]) -> Told:
    prompt = request.get("prompt") or engine.tokenizer.encode_chat(request["messages"])
    fields = ("max_tokens", "temperature", "seed", "stop")
    done = engine.generate(prompt, SamplingParams(**{name: request[name] for name in fields}))
    return done.text, done.token_ids, done.finish_reason


def test_every_answer_is_that_of_the_same_request_alone(server: Client, plain: Engine) -> None:
    asked = list(requests(rounds(40, 200)))
    want = [alone(plain, request) for _, request in asked]
    assert len({str(one) for one in want}) > 0.9 * len(want)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        got = list(clients.map(lambda one: told(server, *one), asked))
    assert got == want
    shuffled = random.Random(1).sample(asked, len(asked) // 2)
    with ThreadPoolExecutor(AT_ONCE) as clients:  # once more, with what was read before at hand
        again = list(clients.map(lambda one: told(server, *one), shuffled))
    assert again == [want[asked.index(one)] for one in shuffled]


def test_they_share_passes(server: Client, engine: Engine) -> None:
    """16 answers of 30 tokens take far fewer passes than one after another."""
    before = engine.counters.steps
    with passes(engine) as held, ThreadPoolExecutor(AT_ONCE) as clients:
        asked = {"model": NAME, "max_tokens": 30, "ignore_eos": True}
        answers = [
            clients.submit(server.get, COMPLETIONS, {**asked, "prompt": [5 + i]})
            for i in range(AT_ONCE)
        ]
        in_flight = lambda: server.metric("requests_running") + server.metric("requests_waiting")  # noqa: E731
        wait_until(lambda: in_flight() == AT_ONCE, "all of them are there")
        held.let(10_000)
        for answer in answers:
            answer.result(PATIENCE)
    assert engine.counters.steps - before < 2 * 30


def test_a_full_queue_says_when_to_come_again(engine: Engine) -> None:
    """429 with Retry-After for whoever is too many; those who wait are served."""
    asked = {"model": NAME, "prompt": [5], "max_tokens": 3, "ignore_eos": True}
    with (
        serving(engine, max_queue=4) as client,
        passes(engine) as held,
        ThreadPoolExecutor(64) as clients,
    ):
        refused = Event()

        def ask(_: int) -> int:
            answer = client.ask(COMPLETIONS, asked)
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.error["message"]
                refused.set()
            return answer.status

        answers = [clients.submit(ask, i) for i in range(64)]
        assert refused.wait(PATIENCE)
        held.let(10_000)
        statuses = [answer.result(PATIENCE) for answer in answers]
        assert set(statuses) == {200, 429}
        assert client.ask(COMPLETIONS, asked).status == 200


def test_a_deadline_ends_what_takes_too_long(server: Client, engine: Engine) -> None:
    """504, or an event with the error where the stream has begun; the blocks are free again.

    The other server of the same engine, which has time, says so.
    """
    asked = {"model": NAME, "prompt": [5], "max_tokens": 400, "ignore_eos": True}
    with serving(engine, request_timeout=0.3) as client:
        free = server.metric("cache_blocks_free")
        with passes(engine) as held, ThreadPoolExecutor(2) as clients:
            waiting = clients.submit(client.ask, COMPLETIONS, asked)
            streaming = clients.submit(lambda: list(client.events(COMPLETIONS, asked)))
            held.let(3)
            answer, events = waiting.result(PATIENCE), streaming.result(PATIENCE)
            assert answer.status == 504
            assert "0.3" in answer.error["message"]
            assert '"error"' in events[-1] or '"error"' in events[-2]
            held.let(4)
            wait_until(lambda: server.at_rest, "nobody is served")
        assert server.metric("cache_blocks_free") == free
        assert server.ask(COMPLETIONS, {**asked, "max_tokens": 2}).status == 200


def test_prefixes_that_were_read_before_are_counted(server: Client) -> None:
    prompt = list(range(5, 105))
    asked = {"model": NAME, "prompt": prompt, "max_tokens": 2}
    server.get(COMPLETIONS, asked)
    hits, misses = (
        server.metric("prefix_hit_tokens_total"),
        server.metric("prefix_miss_tokens_total"),
    )
    server.get(COMPLETIONS, asked)
    assert server.metric("prefix_hit_tokens_total") - hits >= 90
    assert server.metric("prefix_miss_tokens_total") - misses <= 10
