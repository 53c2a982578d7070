"""Requests drawn from the OpenAPI document, and from outside of it: no answer is a fault of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import Engine
from tests.server.bad_requests import CHAT, COMPLETIONS, GOOD, RESPONSES
from tests.server.serving import PATIENCE, Answer, Client, rounds, serving, strict_json

requests = pytest.importorskip("requests", reason="schemathesis is not installed")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

#: What must be in the document; of each a share of the requests is drawn.
OPERATIONS = {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /ready",
    "GET /metrics",
}
FEW = 60
REQUESTS = rounds(FEW, 2000)


@pytest.fixture(scope="module")
def hasty(engine: Engine) -> Iterator[Client]:
    """Drawn requests ask for as many tokens as they like, which a deadline ends."""
    with serving(engine, request_timeout=0.3) as client:
        yield client


@pytest.fixture(scope="module")
def document(server: Client) -> Any:
    return server.get("/openapi.json")


def test_the_document_describes_what_there_is(server: Client, document: dict[str, Any]) -> None:
    said = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert said >= OPERATIONS
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary") or operation.get("description"), (method, path)
            assert "422" not in operation["responses"], "it is 400 here"
    assert server.ask("/docs").status == 200


def test_no_drawn_request_is_answered_with_a_fault(
    server: Client, hasty: Client, document: dict[str, Any]
) -> None:
    """Half of them as the document says, and half that break it somewhere."""
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations()]
    asked = [operation for operation in operations if operation.method.upper() == "POST"]
    seen: Counter[int] = Counter()
    for operation in operations:
        if operation not in asked:  # there is little that could be wrong about it
            play(operation, schemathesis.GenerationMode.POSITIVE, 2, hasty, seen)
            continue
        for mode in schemathesis.GenerationMode:
            play(operation, mode, REQUESTS // (2 * len(asked)), hasty, seen)
    assert sum(seen.values()) >= 0.8 * REQUESTS, seen
    assert seen[200] >= 0.05 * REQUESTS, seen
    assert seen[400] >= 0.2 * REQUESTS, seen
    assert server.ask("/health").status == 200


def drawn(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=REQUESTS == FEW,
        suppress_health_check=list(HealthCheck),
    )


def play(operation: Any, mode: Any, examples: int, server: Client, seen: Counter[int]) -> None:
    @drawn(examples)
    @given(case=operation.as_strategy(generation_mode=mode))
    def draw(case: Any) -> None:
        # Its own way to send it would read no more than twenty events of a stream.
        request = case.as_transport_kwargs(base_url=server.url)
        with requests.request(**request, timeout=PATIENCE) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            answer = Answer(response.status_code, headers, response.content)
        seen[answer.status] += 1
        is_sound(answer)

    draw()


NUMBERS = [0, -1, 1, 2, 0.5, 1.0, 1e-9, 1e308, 2**31, 2**63, 10**30, True]
TEXTS = ["", "a", "text", "json_object", "user", "<|eot|>", "\x00", "🦙", "\ud83d", "x" * 3000]
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "content", "role", "5", "name"]), inner)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_no_good_request_with_fields_that_are_drawn_is(
    hasty: Client, document: dict[str, Any], path: str
) -> None:
    """Deeper in than what is drawn as a whole, which seldom gets past the first check."""
    (body,) = document["paths"][path]["post"]["requestBody"]["content"].values()
    fields = sorted(
        document["components"]["schemas"][body["schema"]["$ref"].split("/")[-1]]["properties"]
    )
    assert len(fields) > 15
    seen: Counter[int] = Counter()

    @drawn(max(1, REQUESTS // 4))
    @given(changes=st.dictionaries(st.sampled_from(fields), VALUES, min_size=1, max_size=3))
    def draw(changes: dict[str, Any]) -> None:
        answer = hasty.ask(path, {**GOOD[path], **changes})
        seen[answer.status] += 1
        is_sound(answer)

    draw()
    assert seen[200] and seen[400], seen


def is_sound(answer: Answer) -> None:
    """No status above 500 but that of the deadline; errors in their shape, and JSON that is JSON."""
    kind = answer.headers.get("content-type", "")
    if answer.status >= 400:
        assert answer.status in (400, 401, 404, 405, 413, 415, 429, 504), answer
        assert answer.error
    elif kind.startswith("text/event-stream"):
        *events, nothing = answer.body.decode().split("\n\n")
        assert nothing == ""
        said = [event.partition("data: ")[2] for event in events]
        documents = [strict_json(data) for data in said if data != "[DONE]"]
        ends = ("response.completed", "response.incomplete", "error")
        assert said[-1] == "[DONE]" or "error" in documents[-1] or documents[-1]["type"] in ends
    elif kind.startswith("application/json"):
        strict_json(answer.body)
