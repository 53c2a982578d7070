"""A conversation in the API's form, and what a chat template is given of it: text alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.server.body import read_json
from engine.server.errors import ApiError
from engine.server.schema import Strict, one_of_the_forms, wrong

MOST_TOOLS = 128
Name = Annotated[str, Field(min_length=1, max_length=256)]


class TextPart(Strict):
    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[Any] = Field([])  # of an answer that is sent back
    logprobs: list[Any] = Field([])
    parsed: Any = None  # by OpenAI's client, from the text


Content = Annotated[
    str | list[TextPart], one_of_the_forms("a text, or a list of parts of which each is a text")
]


class Call(Strict):
    """What the assistant called: arguments are JSON, as text."""

    name: Name
    arguments: str
    parsed_arguments: Any = Field(None, exclude=True)  # by OpenAI's client, from the arguments


class ToolCall(Strict):
    id: str = ""
    type: Literal["function"] = "function"
    function: Call
    index: int = Field(0, exclude=True)  # of a call that was streamed


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] = Field(default=[])
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    annotations: list[Any] = Field(default=[])  # of an answer that is sent back
    parsed: Any = None

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise wrong("tool_calls", "are the assistant's alone")
        if self.content is None and not self.tool_calls:
            raise wrong("content", "is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        """As templates expect it: one text, arguments as an object, and no role that only OpenAI has."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": _text(self.content or ""),
        }
        if self.tool_calls:
            message["tool_calls"] = [_called(call) for call in self.tool_calls]
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message


class Function(Strict):
    name: Name
    description: str = ""
    parameters: dict[str, Any] = Field({})
    strict: bool = False


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


def _text(content: str | list[TextPart]) -> str:
    """Parts of a text each begin a line."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _called(call: ToolCall) -> dict[str, Any]:
    written = call.model_dump()
    try:
        arguments = read_json(call.function.arguments.encode())
    except ApiError:
        return written  # what a model wrote need not be JSON
    if isinstance(arguments, dict):
        written["function"]["arguments"] = arguments
    return written
