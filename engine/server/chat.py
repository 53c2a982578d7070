"""/v1/chat/completions: a conversation, and the assistant's next message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import Response

from engine.errors import RequestError
from engine.generate import Completion, Piece, SamplingParams
from engine.generate.answer import TokenLogprob
from engine.generate.structured import Structure
from engine.server import logprobs
from engine.server.answer import Answer, Choice, FrontendDep
from engine.server.body import StrictRoute
from engine.server.conversation import MOST_TOOLS, Message, Name, Tool
from engine.server.frontend import Admitted, Frontend
from engine.server.schema import (
    Generating,
    NamedSchema,
    Strict,
    Top,
    held_to,
    one_of,
    one_of_the_forms,
    wrong,
)
from engine.server.tools import (
    Called,
    ForcedReader,
    PlainReader,
    Reader,
    Said,
    TaggedReader,
    call_schema,
)

router = APIRouter(route_class=StrictRoute)


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class FunctionName(Strict):
    name: Name


class NamedTool(Strict):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedTool,
    one_of_the_forms('"none", "auto", "required", or a function by its name'),
]


class ChatRequest(Generating):
    """What OpenAI's API takes of text and tools.

    Extensions: `chat_template_kwargs` are variables of the model's chat template, and
    `continue_final_message` has the model go on with the last message instead of beginning one.
    """

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Top | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field([], max_length=MOST_TOOLS)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    modalities: list[Literal["text"]] = Field(["text"])
    prediction: dict[str, Any] | None = None  # a draft of the answer, which changes nothing of it
    chat_template_kwargs: dict[str, Any] = Field({})
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs", "needs logprobs: set it to true")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise wrong("max_tokens", "and max_completion_tokens are one: give one of them")
        if self.forced and not self.called_for:
            raise wrong("tool_choice", "asks for a tool that is not among tools")
        if taken := self.chat_template_kwargs.keys() & _TAKEN:
            raise wrong("chat_template_kwargs", f"cannot have {min(taken)}")
        return self

    @property
    def forced(self) -> bool:
        """Whether a tool must be called."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def called_for(self) -> list[Tool]:
        """The tools of which one may be called."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.tools if tool.function.name == name]
        return [] if self.tool_choice == "none" else self.tools

    @property
    def structure(self) -> Structure | None:
        asked = self.response_format
        return one_of(
            super().structure,
            held_to(asked.type, asked.json_schema) if asked else None,
            call_schema(self.called_for) if self.forced else None,
        )

    def params(self, window: int) -> SamplingParams:
        most = self.max_completion_tokens or self.max_tokens or window
        return SamplingParams(
            **self.choosing(),
            max_tokens=most,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def reader(self) -> Reader:
        names = {tool.function.name for tool in self.called_for}
        if self.forced:
            return ForcedReader(names)
        return TaggedReader(names, not self.parallel_tool_calls) if names else PlainReader()


#: Variables of a template that other fields say, or that are no variables.
_TAKEN = frozenset(
    "messages tools documents chat_template add_generation_prompt continue_final_message "
    "parse_special tokenize self cls".split()
)


def encoded(frontend: Frontend, asked: ChatRequest) -> list[int]:
    """The conversation's ids, by the model's chat template; RequestError where that refuses it."""
    messages = [message.for_template() for message in asked.messages]
    options: dict[str, Any] = {
        "add_generation_prompt": not asked.continue_final_message,
        "continue_final_message": asked.continue_final_message,
        **asked.chat_template_kwargs,
    }
    if asked.called_for:
        without = frontend.speaking.render_chat(messages, **options)
        options["tools"] = [tool.for_template() for tool in asked.tools]
        if frontend.speaking.render_chat(messages, **options) == without:
            raise RequestError("the model's chat template has no place for tools: leave them out")
    return frontend.speaking.encode_chat(messages, **options)


@router.post("/v1/chat/completions")
async def chat(asked: ChatRequest, frontend: FrontendDep) -> Response:
    """The assistant's next message, or n of them to choose from."""
    frontend.check_model(asked.model)
    admitted = frontend.admitted(
        lambda: [encoded(frontend, asked)], 1, asked.params(frontend.window)
    )
    return await _Chat(frontend, asked).respond(admitted)


class _Chat(Answer):
    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    asked: ChatRequest

    def __init__(self, frontend: Frontend, asked: ChatRequest) -> None:
        super().__init__(frontend, asked)
        self._readers = [asked.reader() for _ in range(asked.n)]
        self._calls = [0] * asked.n

    def choice(self, place: int, done: Completion) -> Choice:
        reader = self._readers[place]
        said = [*reader.push(done.text), *reader.flush()]
        text = "".join(part for part in said if isinstance(part, str))
        calls = [part.document for part in said if isinstance(part, Called)]
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        choice = {
            "index": place,
            "message": message,
            "logprobs": self._logprobs(done.logprobs),
            "finish_reason": _reason(done.finish_reason, bool(calls)),
        }
        if self.asked.return_token_ids:
            choice["token_ids"] = done.token_ids
        return choice

    def extras(self, admitted: Admitted) -> dict[str, Any]:
        (request,) = admitted.requests
        return self.of_prompt(request.prompt, request.prompt_logprobs)

    def opening(self, place: int, admitted: Admitted) -> Iterator[Choice]:
        yield self._chunk_choice(place, {"role": "assistant", "content": ""})

    def parts(self, place: int, piece: Piece) -> Iterator[Choice]:
        reader, final = self._readers[place], piece.finish_reason is not None
        said = [*reader.push(piece.text), *(reader.flush() if final else ())]
        deltas = [self._delta(place, part) for part in said]
        more: dict[str, Any] = {"logprobs": self._logprobs(piece.logprobs)}
        if self.asked.return_token_ids:
            more["token_ids"] = list(piece.token_ids)
        if not deltas and (self.asked.logprobs or self.asked.return_token_ids):
            deltas = [{"content": ""}]
        for i, delta in enumerate(deltas):
            yield self._chunk_choice(place, delta) | (more if i == 0 else {})
        if final:
            reason = _reason(piece.finish_reason, self._calls[place] > 0)
            yield {**self._chunk_choice(place, {}), "finish_reason": reason}

    def _delta(self, place: int, said: Said) -> dict[str, Any]:
        if isinstance(said, str):
            return {"content": said}
        index = self._calls[place]
        self._calls[place] += 1
        return {"tool_calls": [{"index": index, **said.document}]}

    def _chunk_choice(self, place: int, delta: dict[str, Any]) -> Choice:
        return {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, entries: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        return logprobs.of_chat(entries or (), self.names) if self.asked.logprobs else None


def _reason(reason: str | None, called: bool) -> str | None:
    """Why an answer ended; that it was made to the end as a call is the reason that clients look for."""
    return "tool_calls" if called and reason == "stop" else reason
