"""One path: what a request is answered with is what `Engine.generate` says, streamed or not, in ids, text and
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.generate import Completion
from tests.server.serving import NAME, Client, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tell me of 🦙 and naïve text."}]
PROMPT = "Tell me of 🦙 and naïve text."

#: Fields of a request that are parameters of the library by the same name.
GRID: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 12},
    {"temperature": 0.8, "seed": 7, "max_tokens": 12},
    {"temperature": 1.5, "top_p": 0.9, "seed": 1, "max_tokens": 30},
    {"temperature": 1.5, "top_k": 9, "min_p": 0.01, "seed": 2, "max_tokens": 12},
    {"temperature": 1.0, "seed": 2, "stop": ["e", "t"], "max_tokens": 60},
    {"temperature": 0, "max_tokens": 1},
    {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 7},
    {"temperature": 3.0, "seed": 4, "ignore_eos": True, "max_tokens": 40},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5, "max_tokens": 12},
    {"temperature": 0, "repetition_penalty": 1.3, "max_tokens": 12},
    {"temperature": 1.0, "seed": 5, "logit_bias": {"5": 4.5, "7": -100}, "max_tokens": 12},
]


@pytest.mark.parametrize("fields", GRID, ids=str)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_answer_is_the_librarys(
    server: Client, plain: Engine, path: str, fields: dict[str, Any]
) -> None:
    bias = {int(token): value for token, value in fields.get("logit_bias", {}).items()}
    params = SamplingParams(**{**fields, "logit_bias": bias}, logprobs=3)
    want = plain.generate(prompt_of(plain, path), params)
    want = want if isinstance(want, list) else [want]
    request = asked(path, fields)
    whole = server.get(path, request)
    streamed = put_together(
        server.chunks(path, {**request, "stream_options": {"include_usage": True}})
    )
    for answer in (whole, streamed):
        assert answer["usage"].items() >= want[0].usage.items()
        for choice, one in zip(answer["choices"], want, strict=True):
            assert (choice["index"], choice["finish_reason"]) == (one.index, one.finish_reason)
            assert choice["token_ids"] == one.token_ids
            assert text_of(choice) == one.text
            assert_logprobs(choice["logprobs"], one, plain)
    assert [choice["logprobs"] for choice in streamed["choices"]] == [
        approximate(choice["logprobs"]) for choice in whole["choices"]
    ]


def asked(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {"model": NAME, "return_token_ids": True, **fields}
    if path == CHAT:
        return {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, **more}
    return {"prompt": PROMPT, "logprobs": 3, **more}


def prompt_of(engine: Engine, path: str) -> str | list[int]:
    return engine.tokenizer.encode_chat(MESSAGES) if path == CHAT else PROMPT


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def put_together(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer of which these are the parts: everything that comes in lists or texts is added up."""
    *parts, last = chunks
    choices: dict[int, dict[str, Any]] = {}
    for chunk in parts:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"], "logprobs": {}})
            said = part.get("delta", {"content": part.get("text")}).get("content")
            choice["text"] = choice.get("text", "") + (said or "")
            choice["token_ids"] = choice.get("token_ids", []) + (part.get("token_ids") or [])
            choice["finish_reason"] = part["finish_reason"]
            for name, values in (part["logprobs"] or {}).items():
                if isinstance(values, list):
                    choice["logprobs"][name] = choice["logprobs"].get(name, []) + values
    return {"choices": [choices[index] for index in sorted(choices)], "usage": last["usage"]}


def approximate(value: Any) -> Any:
    """The same with numbers as close as another batch leaves them, and without what is None."""
    if isinstance(value, dict):
        return {name: approximate(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [approximate(one) for one in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


def assert_logprobs(said: dict[str, Any], want: Completion, engine: Engine) -> None:
    """Of every token, in order: its own log-probability and the best ones'."""
    assert want.logprobs is not None
    own = [entry.logprob for entry in want.logprobs]
    if "content" in said:
        entries = said["content"]
        assert [entry["logprob"] for entry in entries] == pytest.approx(own, abs=1e-5)
        for entry, right in zip(entries, want.logprobs, strict=True):
            assert bytes(entry["bytes"]) == engine.tokenizer.token_bytes(right.token_id)
            best = [top["logprob"] for top in entry["top_logprobs"]]
            assert best == pytest.approx([value for _, value in right.top], abs=1e-5)
        return
    assert said["token_logprobs"] == pytest.approx(own, abs=1e-5)
    assert said["text_offset"] == [entry.text_offset for entry in want.logprobs]
    assert len(said["tokens"]) == len(said["top_logprobs"]) == len(own)


def test_a_prompt_of_ids_is_read_as_it_is(server: Client, plain: Engine) -> None:
    ids = [5, 9, 400, 7]
    want = plain.generate(ids, SamplingParams(max_tokens=6))
    answer = server.get(
        COMPLETIONS, {**asked(COMPLETIONS, GRID[0]), "prompt": ids, "max_tokens": 6}
    )
    (choice,) = answer["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (ids, want.token_ids)


def test_log_probabilities_of_a_prompt(server: Client, plain: Engine) -> None:
    """By token id, of each token its own and the best ones'; nothing foretells the first."""
    want = plain.generate(PROMPT, SamplingParams(max_tokens=2, prompt_logprobs=2)).prompt_logprobs
    answer = server.get(COMPLETIONS, {**asked(COMPLETIONS, GRID[0]), "prompt_logprobs": 2})
    said = answer["choices"][0]["prompt_logprobs"]
    assert want is not None and len(said) == len(want)
    assert said[0] is None
    for entries, right in zip(said[1:], want[1:], strict=True):
        assert right is not None
        held = {right.token_id: right.logprob, **dict(right.top)}
        got = {int(token): entry["logprob"] for token, entry in entries.items()}
        assert got == pytest.approx(held, abs=1e-5)


def test_words_and_back(server: Client, plain: Engine) -> None:
    text = "A naïve 🦙\n<|eot|> walks"
    words = server.get("/tokenize", {"model": NAME, "prompt": text})
    assert words["tokens"] == plain.encode(text)
    assert words["count"] == len(words["tokens"])
    back = server.get("/detokenize", {"model": NAME, "tokens": words["tokens"]})
    assert back["prompt"] == plain.tokenizer.decode(words["tokens"])
    asked = server.get("/tokenize", {"model": NAME, "messages": MESSAGES})
    assert asked["tokens"] == plain.tokenizer.encode_chat(MESSAGES)


# -- real models, and the suite itself -------------------------------------------------------------


@pytest.fixture(scope="module")
def real(asset: Callable[[str], Path]) -> Iterator[tuple[Client, Engine]]:
    engine = Engine.load(asset("smollm2-135m"), cache="paged")
    with serving(engine, served_name="smollm2-135m") as client:
        yield client, engine


def test_a_real_model_says_what_it_says(real: tuple[Client, Engine]) -> None:
    client, engine = real
    asked: dict[str, Any] = {
        "model": "smollm2-135m",
        "temperature": 0,
        "max_tokens": 8,
        "return_token_ids": True,
    }
    done = client.get(COMPLETIONS, {**asked, "prompt": "The capital of France is"})
    want = engine.generate("The capital of France is", SamplingParams(max_tokens=8))
    assert done["choices"][0]["text"] == want.text
    assert want.text.startswith(" Paris")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    chunks = client.chunks(CHAT, {**asked, "messages": question})
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    prompt = engine.tokenizer.encode_chat(question)
    assert said == engine.generate(prompt, SamplingParams(max_tokens=8)).text
    assert "Paris" in said


def test_the_suite_finds_that_a_server_of_this_engine_conforms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As any other server of the OpenAI API with vLLM's ids: log-probabilities, ids and texts."""
    golden = REPOSITORY_GOLDENS / "llama-gqa"
    with serving(Engine.load(golden, cache="paged"), served_name="golden") as client:
        monkeypatch.setenv("LOCKSTEP_URL", f"{client.url}/v1")
        report = run_check([str(golden)], candidate="conformance.http_candidate:candidates")
    assert report.conforms
    assert [trial.probes for trial in report.trials] == [1, 1]
    assert any("is of level L2: no logits, operations, cache" in note for note in report.notes)
