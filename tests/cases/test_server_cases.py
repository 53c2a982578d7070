"""The public cases of the theme server: H01, H02, H05, H06, H08 and H09."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from engine import Engine
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)
from tests.server.serving import NAME, Client, serving, speaking_folder, wait_until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT = 64
HELLO = [{"role": "user", "content": "Hello"}]
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": NAME, "messages": HELLO, "max_tokens": 8, "temperature": 0},
    COMPLETIONS: {"model": NAME, "prompt": "Hello", "max_tokens": 8, "temperature": 0},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = speaking_folder(tmp_path_factory.mktemp("cases") / "tiny", context=CONTEXT)
    return Engine.load(folder, cache="paged")


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[Client]:
    with serving(engine) as client:
        yield client


def end(engine: Engine) -> int:
    return min(engine.eos_ids)


# -- H01 and H02: a stream's parts, and where usage is said ----------------------------------------


@pytest.mark.parametrize("usage", [True, False], ids=["usage", "no usage"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("empty", [False, True], ids=["text", "no text"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_h01_h02_a_stream_says_everything_once(
    server: Client, engine: Engine, path: str, empty: bool, n: int, usage: bool
) -> None:
    """The role first and never again, one reason at the end of each choice, usage where it is asked for."""
    asked = {**GOOD[path], "n": n, "temperature": 1.0, "seed": 1}
    if empty:  # the end token is the first that is chosen
        asked |= {"logit_bias": {str(end(engine)): 100}}
    whole = server.get(path, asked)
    if empty:
        assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop"] * n
    if usage:
        asked["stream_options"] = {"include_usage": True}
    chunks = server.chunks(path, asked)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {
        "chat.completion.chunk" if path == CHAT else "text_completion"
    }
    if usage:
        *chunks, last = chunks
        assert last["choices"] == []
        assert last["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all(chunk.get("usage") is None for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)
    parts: dict[int, list[dict[str, Any]]] = {i: [] for i in range(n)}
    for chunk in chunks:
        for part in chunk["choices"]:
            parts[part["index"]].append(part)
    for index, choice in parts.items():
        *before, final = choice
        assert [part["finish_reason"] for part in before] == [None] * len(before)
        assert final["finish_reason"] == whole["choices"][index]["finish_reason"]
        if path == CHAT:
            assert choice[0]["delta"]["role"] == "assistant"
            assert all("role" not in part["delta"] for part in choice[1:])
            assert not final["delta"].get("content"), "the last has a reason and no text"
            said = "".join(part["delta"].get("content") or "" for part in choice)
            assert said == whole["choices"][index]["message"]["content"]
        else:
            assert "".join(part["text"] for part in choice) == whole["choices"][index]["text"]


def test_h01_a_stream_that_fails_says_so(server: Client, engine: Engine) -> None:
    """An event with the error, in its shape, and no end that looks like a good one."""
    fail = iter([False] * 4 + [True] * 100)

    def spoil(*_: Any) -> None:
        if next(fail):
            raise RuntimeError("the third pass fails")

    handle = engine.decoder.embed.register_forward_pre_hook(spoil)
    try:
        events = list(server.events(CHAT, GOOD[CHAT]))
    finally:
        handle.remove()
    errors = [json.loads(event)["error"] for event in events if '"error"' in event]
    assert len(errors) == 1
    assert set(errors[0]) == {"message", "type", "param", "code"}
    assert "third pass" not in errors[0]["message"], "what is inside is nobody's business"
    assert not any('"finish_reason":"' in event.replace(" ", "") for event in events)
    assert server.get(CHAT, GOOD[CHAT])["choices"], "and the next is served"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_h02_usage_without_a_stream_is_said_anyway(server: Client, path: str) -> None:
    """`stream_options` without `stream` is refused, as OpenAI does."""
    answer = server.ask(path, {**GOOD[path], "stream_options": {"include_usage": True}})
    assert (answer.status, answer.error["param"]) == (400, "stream_options")
    assert server.get(path, GOOD[path])["usage"]["completion_tokens"] == 8


# -- H05: prompts beyond the context ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [64, 65, 10_000])
def test_h05_a_prompt_beyond_the_context_is_refused_with_the_numbers(
    server: Client, length: int, stream: bool
) -> None:
    asked = {**GOOD[COMPLETIONS], "prompt": [5] * length, "stream": stream}
    answer = server.ask(COMPLETIONS, asked)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert str(length) in answer.error["message"].replace(",", "")
    assert str(CONTEXT) in answer.error["message"]
    assert server.ask("/health").status == 200


@pytest.mark.parametrize(("length", "room"), [(63, 1), (60, 4)])
def test_h05_an_answer_ends_where_the_context_does(server: Client, length: int, room: int) -> None:
    """The prompt is read as it is, and the answer capped: equal whether or not it is streamed."""
    asked = {**GOOD[COMPLETIONS], "prompt": [5] * length, "max_tokens": 10, "ignore_eos": True}
    asked |= {"return_token_ids": True}
    (choice,) = server.get(COMPLETIONS, asked)["choices"]
    assert choice["prompt_token_ids"] == [5] * length
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (room, "length")
    chunks = server.chunks(COMPLETIONS, asked)
    parts = [part for chunk in chunks for part in chunk["choices"]]
    assert [token for part in parts for token in part.get("token_ids") or []] == choice["token_ids"]
    assert parts[-1]["finish_reason"] == "length"


def test_h05_a_chat_beyond_the_context_is_refused_too(server: Client) -> None:
    messages = [{"role": "user", "content": "word " * 200}]
    answer = server.ask(CHAT, {**GOOD[CHAT], "messages": messages})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")


# -- H06: many at once -----------------------------------------------------------------------------


def test_h06_sixteen_at_once_are_answered_as_one_after_another(server: Client) -> None:
    """Streamed and not, of different lengths and stops; one leaves, and one is refused."""
    requests = [
        {
            **GOOD[COMPLETIONS],
            "prompt": [5 + i] * (1 + 3 * i % 40),
            "max_tokens": 4 + i,
            "stop": ["e"] if i % 3 else [],
        }
        for i in range(16)
    ]
    requests[5]["prompt"] = [10**6]

    def ask(i: int) -> Any:
        request = requests[i]
        if i == 5:
            return server.ask(COMPLETIONS, request).status
        if i == 7:
            events = server.events(COMPLETIONS, request)
            next(events)
            events.close()
            return None
        if i % 2:
            (choice,) = server.get(COMPLETIONS, request)["choices"]
            return choice["text"], choice["finish_reason"]
        chunks = server.chunks(COMPLETIONS, request)
        assert len({chunk["id"] for chunk in chunks}) == 1
        parts = [part for chunk in chunks for part in chunk["choices"]]
        return "".join(part["text"] for part in parts), parts[-1]["finish_reason"]

    alone = [ask(i) for i in range(16)]
    assert alone[5] == 400
    assert len(set(map(str, alone))) > 8
    with ThreadPoolExecutor(16) as clients:
        assert list(clients.map(ask, range(16))) == alone
    wait_until(lambda: server.at_rest, "nobody is served")


# -- H08: streamed or not --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.8, "seed": 7},
        {"stop": ["e", "t"], "temperature": 1.0, "seed": 2, "max_tokens": 40},
        {"max_tokens": 1},
        {"logprobs": 2},
        {"n": 2, "temperature": 1.0, "seed": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_h08_a_stream_adds_up_to_the_answer(
    server: Client, path: str, fields: dict[str, Any]
) -> None:
    asked = {**GOOD[path], **fields}
    if path == CHAT and "logprobs" in fields:
        asked |= {"logprobs": True, "top_logprobs": 2}
    whole = server.get(path, asked)
    chunks = server.chunks(path, {**asked, "stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [
            part
            for chunk in chunks
            for part in chunk["choices"]
            if part["index"] == choice["index"]
        ]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        said = [part["delta"].get("content") if path == CHAT else part["text"] for part in parts]
        assert "".join(one or "" for one in said) == text
        for name, values in (choice.get("logprobs") or {}).items():
            if values is not None:
                held = [v for part in parts for v in (part["logprobs"] or {}).get(name) or []]
                assert (
                    held == pytest.approx(values)
                    if name == "token_logprobs"
                    else len(held) == len(values)
                )


# -- H09: log-probabilities of what cannot be ------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1, "temperature": 1.0, "seed": 1},
        {"logit_bias": {str(i): -100 for i in range(400)}},
    ],
    ids=", ".join,
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_h09_log_probabilities_are_numbers_of_json(
    server: Client, path: str, fields: dict[str, Any], stream: bool
) -> None:
    """No Infinity and no NaN: tokens that cannot be chosen are none of the best."""
    asked = {**GOOD[path], **fields, "logprobs": True if path == CHAT else 5}
    if path == CHAT:
        asked["top_logprobs"] = 5
    # The client reads JSON strictly.
    answers = server.chunks(path, asked) if stream else [server.get(path, asked)]
    said = [part["logprobs"] for one in answers for part in one["choices"] if part.get("logprobs")]
    assert said
    for value in numbers(said):
        assert -10_000 <= value <= 1e-6 or value == int(value)


def numbers(value: Any) -> Iterator[float]:
    """All floats in a document."""
    match value:
        case float():
            yield value
        case dict():
            for one in value.values():
                yield from numbers(one)
        case list():
            for one in value:
                yield from numbers(one)
