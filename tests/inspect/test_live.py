"""The live form in the server: a page on request, with the key, in a place of the queue, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from engine import Engine
from engine.server import Settings
from engine.server.errors import ApiError
from engine.server.frontend import Frontend
from engine.server.inspect import MOST_TOKENS
from tests.inspect.test_page import HOSTILE, Read
from tests.server.serving import Answer, Client, serving, speaking_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking_folder(tmp_path_factory.mktemp("live") / "tiny", context=4096)


@pytest.fixture(scope="module")
def served(folder: Path) -> Engine:
    return Engine.load(folder, cache="paged", cache_tokens=512)


@pytest.fixture(scope="module")
def client(served: Engine) -> Iterator[Client]:
    with serving(served) as client:
        yield client


def asked(client: Client, **body: Any) -> Answer:
    return client.ask("/v1/inspect", {"max_tokens": 2, **body})


def test_the_form_is_open_and_what_it_asks_for_is_the_page(client: Client) -> None:
    form = client.ask("/inspect")
    assert form.status == 200
    assert Read(form.body.decode()).tags.count(("form", {"id": "ask"})) == 1
    text = HOSTILE.replace("\ud800", "")  # half of a character is refused
    found = asked(client, prompt=text)
    assert found.status == 200
    assert found.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert found.headers["cache-control"] == "no-store"
    document = json.loads(Read(found.body.decode()).scripts[0])
    assert document["prompt"]["text"] == text
    assert len(document["answer"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": ""},
        {"prompt": "x", "max_tokens": 33},
        {"prompt": "x", "n": 2},
        {"prompt": [1, 2]},
        {"prompt": "x " * (MOST_TOKENS + 1)},
    ],
)
def test_what_is_out_of_bounds_is_refused(client: Client, body: dict[str, Any]) -> None:
    refused = asked(client, **body)
    assert refused.status == 400
    assert refused.error["type"] == "invalid_request_error"


def test_other_answers_are_the_same_meanwhile(client: Client, served: Engine) -> None:
    """Hooks and kernels are the inspection's own."""
    body = {"prompt": "Hello there", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    before = client.get("/v1/completions", body)["choices"][0]["text"]
    statuses: list[int] = []
    other = Thread(target=lambda: statuses.append(asked(client, prompt="The " * 200).status))
    other.start()
    during = [client.get("/v1/completions", body) for _ in range(3)]
    other.join()
    assert statuses == [200]
    assert {one["choices"][0]["text"] for one in during} == {before}
    assert not any(module._forward_hooks for module in served.decoder.modules())


def test_the_key_is_respected(served: Engine) -> None:
    with serving(served, api_key="secret") as client:
        without = {"Authorization": ""}
        assert client.ask("/inspect", headers=without).status == 200
        assert client.ask("/v1/inspect", {"prompt": "Hi"}, headers=without).status == 401
        assert asked(client, prompt="Hi").status == 200


def test_an_inspection_has_a_place_in_the_queue(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "max_batch", 1)
    frontend = Frontend(served, Settings(max_queue=0))

    async def both() -> str:
        """The second comes while the first has the only place."""
        at_work, done = Event(), Event()

        def first() -> str:
            at_work.set()
            done.wait(60)
            return "done"

        running = asyncio.create_task(frontend.placed(first, "inspections"))
        await asyncio.to_thread(at_work.wait, 60)
        with pytest.raises(ApiError) as refused:
            await frontend.placed(str, "inspections")
        assert refused.value.status_code == 429
        done.set()
        return await running

    assert asyncio.run(both()) == "done"
