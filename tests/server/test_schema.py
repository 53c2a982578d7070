"""What a request becomes: SamplingParams, a conversation, calls of tools."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engine import SamplingParams
from engine.errors import RequestError
from engine.server.body import MOST_DEPTH, read_json
from engine.server.chat import ChatRequest
from engine.server.completions import CompletionRequest
from engine.server.conversation import Message, Tool
from engine.server.errors import ApiError
from engine.server.responses import ResponsesRequest
from engine.server.schema import MOST_CHARACTERS
from engine.server.tools import Called, ForcedReader, Said, TaggedReader, call_schema

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

#: Fields that are parameters by the same name, none at its default.
SAMPLING: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.4,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "min_tokens": 2,
    "stop_token_ids": [7],
    "ignore_eos": True,
}
GENERATING: dict[str, Any] = {
    **SAMPLING,
    "n": 2,
    "seed": 9,
    "stop": ["x", "y"],
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "include_stop_str_in_output": True,
    "prompt_logprobs": 1,
    "max_tokens": 11,
}


def test_every_field_of_a_completion_reaches_the_engine() -> None:
    more: dict[str, Any] = {"logprobs": 3, "best_of": 4}
    asked = CompletionRequest(prompt="x", logit_bias={"5": -1.5}, **GENERATING, **more)
    assert asked.params() == SamplingParams(**GENERATING, **more, logit_bias={5: -1.5})


def test_every_field_of_a_chat_reaches_the_engine() -> None:
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
    asked = ChatRequest(messages=HELLO, logit_bias={"5": -1.5}, **GENERATING, **more)
    assert asked.params(99) == SamplingParams(**GENERATING, logprobs=3, logit_bias={5: -1.5})


def test_every_field_of_a_response_reaches_the_engine() -> None:
    asked = ResponsesRequest(input="x", max_output_tokens=11, top_logprobs=3, **SAMPLING)
    assert asked.params(99) == SamplingParams(**SAMPLING, max_tokens=11, logprobs=3)


def test_what_nobody_says_is_as_with_openai() -> None:
    completion, chat = CompletionRequest(prompt="x"), ChatRequest(messages=HELLO)
    usual: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0}
    assert completion.params() == SamplingParams(max_tokens=16, **usual)
    assert chat.params(99) == SamplingParams(max_tokens=99, **usual)


def test_null_is_as_good_as_nothing() -> None:
    plain = ChatRequest(messages=HELLO)
    nothing = dict.fromkeys((*GENERATING, "tools", "response_format", "logit_bias", "suffix"))
    assert ChatRequest(messages=HELLO, **nothing) == plain


def test_echoed_log_probabilities_are_the_prompts_too() -> None:
    asked = CompletionRequest(prompt="x", echo=True, logprobs=2)
    assert asked.params().prompt_logprobs == 2
    assert CompletionRequest(prompt="x", echo=True).params().prompt_logprobs is None


def test_a_negative_seed_is_one_of_the_librarys() -> None:
    seeds = [CompletionRequest(prompt="x", seed=seed).params().seed for seed in (-1, -(2**63), 5)]
    assert seeds == [2**63 - 1, 0, 5]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", ["ab"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_prompts_of_every_kind(prompt: Any, prompts: list[Any]) -> None:
    assert CompletionRequest(prompt=prompt).prompts == prompts


def test_what_changes_nothing_is_taken_and_what_would_is_refused_by_name() -> None:
    harmless: dict[str, Any] = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "default",
        "safety_identifier": "x",
        "prompt_cache_key": "x",
        "prediction": {"type": "content", "content": "x"},
        "modalities": ["text"],
    }
    assert ChatRequest(messages=HELLO, **harmless).params(9) == ChatRequest(messages=HELLO).params(
        9
    )
    for name in ("suffix", "functions", "audio", "verbosity", "reasoning_effort", "chat_template"):
        with pytest.raises(ValidationError, match=name):
            ChatRequest(messages=HELLO, **{name: "x"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"stream_options": {"include_usage": True}},
        {"top_logprobs": 1},
        {"max_tokens": 1, "max_completion_tokens": 1},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "x"}}},
        {"chat_template_kwargs": {"tools": []}},
        {"modalities": ["audio"]},
    ],
    ids=str,
)
def test_what_makes_no_sense_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChatRequest(messages=HELLO, **wrong)


# -- structures ------------------------------------------------------------------------------------


def test_an_answer_is_held_to_one_structure() -> None:
    json_object = {"type": "json_object"}
    assert ChatRequest(messages=HELLO, response_format=json_object).params(9).structured
    both = ChatRequest(messages=HELLO, response_format=json_object, guided_regex="a")
    with pytest.raises(RequestError, match="one structure"):
        both.params(9)


def test_a_structure_that_would_take_long_to_read_is_refused() -> None:
    schema = {"enum": ["x" * MOST_CHARACTERS]}
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(RequestError, match="50,000"):
        ChatRequest(messages=HELLO, response_format=asked).params(9)
    for name in ("guided_regex", "guided_grammar"):
        with pytest.raises(ValidationError):
            ChatRequest(messages=HELLO, **{name: "x" * (MOST_CHARACTERS + 1)})


# -- conversations ---------------------------------------------------------------------------------


def test_parts_are_one_text_and_developers_are_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    message = Message(role="developer", content=parts)
    assert message.for_template() == {"role": "system", "content": "a\nb"}


def test_arguments_of_a_call_are_an_object_for_the_template() -> None:
    def shown(arguments: str) -> Any:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        message = Message(role="assistant", tool_calls=[call]).for_template()
        return message["tool_calls"][0]["function"]["arguments"]

    assert shown('{"a": 1}') == {"a": 1}
    assert shown("no JSON") == "no JSON"
    deep = '{"a":' * 500 + "1" + "}" * 500
    for text in ("[" * 100_000, deep, '{"a": NaN}', '{"a": "\\ud800"}'):
        assert shown(text) == text


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    came = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert Message(**came).for_template() == {"role": "assistant", "content": "Hi"}


def test_an_answer_may_be_sent_back_as_openais_client_parsed_it() -> None:
    """Its helpers add what they made of a text, and leave it there when the message goes back."""
    part = {"type": "output_text", "text": "[5]", "parsed": [5]}
    came = Message(role="assistant", content=[part], parsed=[5])
    assert came.for_template() == {"role": "assistant", "content": "[5]"}
    function = {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 2}}
    call = {"id": "1", "type": "function", "function": function, "index": 3}
    shown = Message(role="assistant", content="", tool_calls=[call]).for_template()
    called = {"name": "f", "arguments": {"a": 1}}
    assert shown["tool_calls"] == [{"id": "1", "type": "function", "function": called}]


# -- calls of tools --------------------------------------------------------------------------------


def tool(name: str = "f", **parameters: Any) -> Tool:
    return Tool(type="function", function={"name": name, "parameters": parameters})


def shown(said: list[Said]) -> list[Any]:
    """Texts joined, and calls without their ids, which are drawn."""
    out: list[Any] = []
    for part in said:
        if isinstance(part, Called):
            out.append((part.name, json.loads(part.arguments)))
        elif out and isinstance(out[-1], str):
            out[-1] += part
        else:
            out.append(part)
    return out


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
READ = ("f", {"a": "é"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ("Hello <tool", ["Hello <tool"]),
        (" \n ", [" \n "]),
        (CALL, [READ]),
        (f"Hi\n{CALL}\n", ["Hi", READ]),
        (f"{CALL}\n{CALL}", [READ, READ]),
        (f"{CALL} and", [READ, " and"]),
        (CALL.removesuffix("</tool_call>"), [READ]),
        ("<tool_call>{", ["<tool_call>{"]),
        (CALL.replace('"f"', '"g"'), [CALL.replace('"f"', '"g"')]),
        (CALL.replace('{"a": "é"}', "[1]"), [CALL.replace('{"a": "é"}', "[1]")]),
        (CALL.replace('"é"', "NaN"), [CALL.replace('"é"', "NaN")]),
        (CALL.replace('"f"', "[]"), [CALL.replace('"f"', "[]")]),
    ],
)
@given(st.lists(st.integers(0, 200), max_size=8))
def test_calls_are_read_however_the_text_is_cut(
    text: str, said: list[Any], cuts: list[int]
) -> None:
    reader = TaggedReader({"f"}, one=False)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    parts = [
        part for a, b in zip([0, *ends], ends, strict=False) for part in reader.push(text[a:b])
    ]
    assert shown([*parts, *reader.flush()]) == said


def test_of_several_calls_one_is_kept_where_one_is_asked_for() -> None:
    reader = TaggedReader({"f"}, one=True)
    assert shown([*reader.push(CALL + CALL), *reader.flush()]) == [READ]


def test_a_run_of_blanks_is_read_in_linear_time() -> None:
    """Of a square of its length, an answer of blanks alone would hold up everybody's for minutes."""

    def seconds(blanks: int) -> float:
        start = time.process_time()
        assert "".join(map(str, TaggedReader({"f"}, one=False).push(f"a{' ' * blanks}b"))) != ""
        return time.process_time() - start

    # Taken in turn, so that a neighbour's work on this machine meets both.
    times = [(seconds(5_000), seconds(10_000)) for _ in range(3)]
    once, twice = map(min, zip(*times, strict=True))
    assert twice / once < 3


def test_a_forced_call_is_the_whole_answer() -> None:
    for text, said in (('{"name": "f", "arguments": {}}', [("f", {})]), ('{"name', ['{"name'])):
        reader = ForcedReader({"f"})
        assert reader.push(text) == []
        assert shown(reader.flush()) == said


def test_what_parameters_refer_to_is_found_where_a_call_is_held_to_them() -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    refers = {"properties": {"p": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": place}}
    schema = json.loads(str(call_schema([tool("f", **refers), tool("g", **refers)]).schema))
    assert schema["$defs"] == {"Place": place}
    names = [call["properties"]["name"]["const"] for call in schema["anyOf"]]
    assert names == ["f", "g"]
    other = {**refers, "$defs": {"Place": {"type": "string"}}}
    for wrong in (5, []):
        with pytest.raises(RequestError, match="defs"):
            call_schema([tool("f", **{"$defs": wrong})])
    with pytest.raises(RequestError, match="Place"):
        call_schema([tool("f", **refers), tool("g", **other)])


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"a": [1, NaN]}', "a.1"),
        (b'{"a": {"b": -Infinity}}', "a.b"),
        (b'{"a": 1e999}', "a "),
        (b'{"a": "\\ud800"}', "a has half"),
        (b'{"\\udfff": 1}', "half of a character"),
        (b"\xff", "UTF-8"),
        (b'{"a": 1}x', "character 8"),
        (b"1" * 5000, "digits"),
        (b"[" * 100_000 + b"]" * 100_000, "nested"),
        (b"[" * (MOST_DEPTH + 1) + b"]" * (MOST_DEPTH + 1), "nested"),
    ],
)
def test_what_is_no_json_is_refused_by_the_place(body: bytes, word: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_json(body)
    assert refused.value.status_code == 400
    assert word in refused.value.message


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        ),
    )
)
def test_all_else_is_read(document: Any) -> None:
    for ascii_only in (True, False):
        body = json.dumps(document, ensure_ascii=ascii_only).encode()
        assert read_json(body) == document
