"""OpenAI's own Python client, used as its documentation shows, works unchanged."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from engine import Engine, SamplingParams
from tests.server.serving import NAME, Client

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own affair
    import openai
    from openai import AsyncOpenAI, OpenAI

MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}


@pytest.fixture
def client(server: Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def prompt_of(engine: Engine, messages: list[Any] = MESSAGES, **details: Any) -> list[int]:
    return engine.tokenizer.encode_chat(messages, **details)


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (NAME, "model")
    assert client.models.retrieve(NAME) == model
    with pytest.raises(openai.NotFoundError, match="other"):
        client.models.retrieve("other")


def test_chat(client: OpenAI, plain: Engine) -> None:
    want = plain.generate(prompt_of(plain), SamplingParams(max_tokens=12))
    done = client.chat.completions.create(messages=MESSAGES, max_tokens=12, **GREEDY)
    (choice,) = done.choices
    assert done.object == "chat.completion" and done.model == NAME and done.id
    assert (choice.index, choice.message.role) == (0, "assistant")
    assert (choice.message.content, choice.finish_reason) == (want.text, want.finish_reason)
    assert done.usage is not None
    assert {name: getattr(done.usage, name) for name in want.usage} == want.usage


def test_the_newer_name_of_max_tokens(client: OpenAI) -> None:
    done = client.chat.completions.create(messages=MESSAGES, max_completion_tokens=3, **GREEDY)
    assert done.usage is not None and done.usage.completion_tokens == 3


def test_chat_streamed(client: OpenAI, plain: Engine) -> None:
    want = plain.generate(prompt_of(plain), SamplingParams(max_tokens=12))
    stream = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == want.text
    assert chunks[-1].choices[0].finish_reason == want.finish_reason
    assert last.choices == [] and last.usage is not None
    assert {name: getattr(last.usage, name) for name in want.usage} == want.usage


def test_chat_streamed_with_the_helper(client: OpenAI, plain: Engine) -> None:
    """It puts the chunks together itself, is strict about their order, and refuses answers cut short."""
    drawn: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 3, "stop": ["e"]}
    want = plain.generate(prompt_of(plain), SamplingParams(**drawn))
    with client.chat.completions.stream(model=NAME, messages=MESSAGES, **drawn) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        done = stream.get_final_completion()
    assert said == done.choices[0].message.content == want.text


def test_completion(client: OpenAI, plain: Engine) -> None:
    want = plain.generate("Once upon", SamplingParams(max_tokens=10))
    done = client.completions.create(prompt="Once upon", max_tokens=10, **GREEDY)
    assert done.object == "text_completion"
    assert (done.choices[0].text, done.choices[0].finish_reason) == (want.text, want.finish_reason)
    stream = client.completions.create(prompt="Once upon", max_tokens=10, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in stream) == want.text


def test_a_completion_has_sixteen_tokens_where_nobody_says_how_many(client: OpenAI) -> None:
    done = client.completions.create(prompt="Once upon", **GREEDY)
    assert done.usage is not None and done.usage.completion_tokens == 16


def test_several_prompts_of_either_kind(client: OpenAI, plain: Engine) -> None:
    """The choices of prompt i are those of index i * n and on."""
    for prompts in (["Once", "The sky is"], [[5, 7, 9], [8]]):
        want = plain.generate(prompts, SamplingParams(max_tokens=6, n=2, temperature=1.0, seed=4))
        done = client.completions.create(
            model=NAME, prompt=prompts, max_tokens=6, n=2, temperature=1.0, seed=4
        )
        told = [(choice.index, choice.text) for choice in done.choices]
        assert told == [(i, one.text) for i, one in enumerate(chain(*want))]
        assert done.usage is not None
        assert done.usage.prompt_tokens == sum(pair[0].usage["prompt_tokens"] for pair in want)


def test_echo(client: OpenAI, plain: Engine) -> None:
    want = plain.generate("Once upon", SamplingParams(max_tokens=4))
    done = client.completions.create(prompt="Once upon", max_tokens=4, echo=True, **GREEDY)
    assert done.choices[0].text == "Once upon" + want.text


def test_logprobs_of_a_chat(client: OpenAI, plain: Engine) -> None:
    want = plain.generate(prompt_of(plain), SamplingParams(max_tokens=6, logprobs=3)).logprobs
    done = client.chat.completions.create(
        messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3, **GREEDY
    )
    said = done.choices[0].logprobs
    assert want is not None and said is not None and said.content is not None
    assert [entry.logprob for entry in said.content] == pytest.approx(
        [entry.logprob for entry in want], abs=1e-5
    )
    for got, entry in zip(said.content, want, strict=True):
        assert bytes(got.bytes or []) == plain.tokenizer.token_bytes(entry.token_id)
        assert [top.logprob for top in got.top_logprobs] == pytest.approx(
            [value for _, value in entry.top], abs=1e-5
        )
        assert got.top_logprobs[0].token == got.token, "greedy: the best is the chosen one"


def test_logprobs_of_a_completion(client: OpenAI, plain: Engine) -> None:
    want = plain.generate("Once upon", SamplingParams(max_tokens=6, logprobs=2))
    done = client.completions.create(prompt="Once upon", max_tokens=6, logprobs=2, **GREEDY)
    said = done.choices[0].logprobs
    assert said is not None and want.logprobs is not None
    assert said.tokens is not None and len(said.tokens) == 6
    assert said.token_logprobs == pytest.approx([e.logprob for e in want.logprobs], abs=1e-5)
    assert said.text_offset == [entry.text_offset for entry in want.logprobs]
    assert said.top_logprobs is not None and all(1 <= len(t) <= 3 for t in said.top_logprobs)


def test_the_token_that_was_drawn_is_among_the_logprobs_of_a_completion(client: OpenAI) -> None:
    """Also where it is none of the best; so there may be one more than was asked for."""
    done = client.completions.create(
        model=NAME, prompt="Once upon", max_tokens=20, logprobs=1, temperature=2.0, seed=1
    )
    said = done.choices[0].logprobs
    assert said is not None and said.tokens and said.top_logprobs and said.token_logprobs
    for token, own, best in zip(said.tokens, said.token_logprobs, said.top_logprobs, strict=True):
        assert best[token] == own
    sizes = {len(best) for best in said.top_logprobs}
    assert 2 in sizes and sizes <= {1, 2}


def test_several_answers_with_a_seed(client: OpenAI, plain: Engine) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, seed=11, n=3)
    want = plain.generate(prompt_of(plain), params)
    done = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=8, temperature=1.0, top_p=0.9, seed=11, n=3
    )
    assert [(c.index, c.message.content) for c in done.choices] == [
        (one.index, one.text) for one in want
    ]
    assert len({choice.message.content for choice in done.choices}) == 3


@pytest.mark.parametrize("stop", ["e", ["e", "t"]])
def test_stop(client: OpenAI, plain: Engine, stop: str | list[str]) -> None:
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=3, stop=stop)
    want = plain.generate(prompt_of(plain), params)
    assert want.finish_reason == "stop" and want.text
    done = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_tokens=60, temperature=1.0, seed=3, stop=stop
    )
    (choice,) = done.choices
    assert (choice.message.content, choice.finish_reason) == (want.text, "stop")


def test_biases_and_penalties(client: OpenAI, plain: Engine) -> None:
    changes: dict[str, Any] = {"presence_penalty": 0.7, "frequency_penalty": 0.4}
    prompt = prompt_of(plain)
    without = plain.generate(prompt, SamplingParams(max_tokens=16)).token_ids
    bias = {without[0]: -100, without[1]: 5}
    want = plain.generate(prompt, SamplingParams(max_tokens=16, logit_bias=bias, **changes))
    assert want.token_ids != without
    done = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=16,
        logit_bias={str(token): value for token, value in bias.items()},
        **changes,
        **GREEDY,
    )
    assert done.choices[0].message.content == want.text


def test_tools_reach_the_template(client: OpenAI, plain: Engine) -> None:
    """And so do a call that the assistant made and what the tool said; who asks gets an ordinary answer."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": json.dumps({"city": "Paris"})},
    }
    said: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain."},
    ]
    for messages in (MESSAGES, said):
        done = client.chat.completions.create(
            messages=messages,
            tools=TOOLS,
            tool_choice="auto",
            max_tokens=4,
            extra_body={"return_token_ids": True},
            **GREEDY,
        )
        shown = plain.tokenizer.decode(done.model_dump()["prompt_token_ids"])
        assert "The weather in a city." in shown
        assert ("Rain." in shown and '"Paris' in shown.replace("\\", "")) is (messages is said)
    without = client.chat.completions.create(messages=MESSAGES, max_tokens=4, **GREEDY)
    assert without.usage is not None and done.usage is not None
    assert without.usage.prompt_tokens < done.usage.prompt_tokens


class Place(BaseModel):
    """A small model whose answers are short, whatever tokens are drawn."""

    city: Literal["Paris", "Rome"]
    large: bool


def test_json_schema(client: OpenAI) -> None:
    pytest.importorskip("llguidance", reason="the extra structured is not installed")
    schema: Any = {
        "type": "json_schema",
        "json_schema": {"name": "place", "schema": Place.model_json_schema(), "strict": True},
    }
    done = client.chat.completions.create(
        model=NAME,
        messages=MESSAGES,
        max_tokens=200,
        temperature=1.0,
        seed=1,
        response_format=schema,
    )
    Place.model_validate_json(done.choices[0].message.content or "")
    assert done.choices[0].finish_reason == "stop"
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": MESSAGES,
        "max_tokens": 200,
        "temperature": 1.0,
        "seed": 1,
    }
    parsed = client.chat.completions.parse(response_format=Place, **asked)
    assert isinstance(parsed.choices[0].message.parsed, Place)
    in_response = client.responses.parse(
        model=NAME, input="Where?", text_format=Place, max_output_tokens=200, temperature=1.0
    )
    assert isinstance(in_response.output_parsed, Place)


def test_json_object(client: OpenAI) -> None:
    pytest.importorskip("llguidance", reason="the extra structured is not installed")
    done = client.chat.completions.create(
        messages=MESSAGES,
        max_tokens=5,
        response_format={"type": "json_object"},
        **GREEDY,
    )
    assert (done.choices[0].message.content or "").startswith("{")


def test_responses(client: OpenAI, plain: Engine) -> None:
    want = plain.generate(prompt_of(plain), SamplingParams(max_tokens=12))
    done = client.responses.create(
        instructions="Be brief.",
        input="What is the capital of France?",
        max_output_tokens=12,
        **GREEDY,
    )
    assert (done.object, done.output_text, done.model) == ("response", want.text, NAME)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (
        want.usage["prompt_tokens"],
        want.usage["completion_tokens"],
    )
    assert done.status == "incomplete" and done.incomplete_details is not None
    assert done.incomplete_details.reason == "max_output_tokens"
    as_messages = client.responses.create(input=MESSAGES, max_output_tokens=12, **GREEDY)
    assert as_messages.output_text == want.text


def test_responses_streamed(client: OpenAI) -> None:
    asked: dict[str, Any] = {"input": "Once upon", "max_output_tokens": 12, **GREEDY}
    client.responses.create(**asked)  # so that the cache knows as much of the prompt to both
    want = client.responses.create(**asked)
    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == want.output_text
    last: Any = events[-1]
    assert last.response.output_text == want.output_text
    assert last.response.usage == want.usage


def test_responses_streamed_with_the_helper(client: OpenAI) -> None:
    """It puts the events together itself, and reads the document of an answer that is complete."""
    pytest.importorskip("llguidance", reason="the extra structured is not installed")
    asked: dict[str, Any] = {"input": "Where?", "max_output_tokens": 200, "temperature": 1.0}
    with client.responses.stream(model=NAME, text_format=Place, **asked) as stream:
        said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        done = stream.get_final_response()
    assert done.status == "completed"
    assert said == done.output_text
    assert done.output_parsed == Place.model_validate_json(said)


def test_the_asynchronous_client(server: Client, plain: Engine) -> None:
    want = plain.generate(prompt_of(plain), SamplingParams(max_tokens=12))

    async def ask() -> list[str]:
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(messages=MESSAGES, max_tokens=12, **GREEDY),
                client.chat.completions.create(
                    messages=MESSAGES, max_tokens=12, stream=True, **GREEDY
                ),
            )
            said = [chunk.choices[0].delta.content or "" async for chunk in stream]
            return [whole.choices[0].message.content or "", "".join(said)]

    assert asyncio.run(ask()) == [want.text] * 2


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        client.chat.completions.create(model=NAME, messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="nobody") as unknown:
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=NAME, prompt="word " * 2000)
    assert long.value.code == "context_length_exceeded"
