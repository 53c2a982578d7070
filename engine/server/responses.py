"""/v1/responses in its text form: an input, and one message as the output. Nothing is stored.

Tools, stored conversations and background work are refused by name.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from engine.generate import Completion, SamplingParams
from engine.generate.answer import TokenLogprob
from engine.generate.structured import Structure
from engine.server import logprobs
from engine.server.answer import FrontendDep, new_id
from engine.server.body import StrictRoute
from engine.server.conversation import Content, Message
from engine.server.document import document
from engine.server.errors import ApiError
from engine.server.frontend import Admitted, Frontend
from engine.server.logprobs import Names
from engine.server.schema import (
    NamedSchema,
    Sampling,
    Strict,
    Top,
    held_to,
    one_of,
    one_of_the_forms,
)
from engine.server.stream import EventStream, event

router = APIRouter(route_class=StrictRoute)


class Item(Strict):
    """A message of the input; those of earlier outputs may be sent back as they came."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str = ""
    status: str = ""
    phase: str = ""

    def for_template(self) -> dict[str, Any]:
        return Message(role=self.role, content=self.content).for_template()


class TextFormat(NamedSchema):
    type: Literal["text", "json_object", "json_schema"]


class TextOptions(Strict):
    format: TextFormat | None = None


class ResponsesRequest(Sampling):
    """What OpenAI's API takes of text."""

    input: Annotated[
        str | Annotated[list[Item], Field(min_length=1)],
        one_of_the_forms("a text, or a list of messages of which each has a role and a text"),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextOptions = TextOptions()
    top_logprobs: Top | None = None
    include: list[Literal["message.output_text.logprobs"]] = Field([])
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False
    tools: list[Any] = Field([], max_length=0)
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True

    @property
    def structure(self) -> Structure | None:
        asked = self.text.format
        return one_of(super().structure, held_to(asked.type, asked) if asked else None)

    @property
    def messages(self) -> list[dict[str, Any]]:
        told = self.input
        given = [Item(role="user", content=told)] if isinstance(told, str) else told
        first = (
            [] if self.instructions is None else [Item(role="system", content=self.instructions)]
        )
        return [item.for_template() for item in (*first, *given)]

    @property
    def with_logprobs(self) -> bool:
        return bool(self.include) or self.top_logprobs is not None

    def params(self, window: int) -> SamplingParams:
        return SamplingParams(
            **self.choosing(),
            max_tokens=self.max_output_tokens or window,
            logprobs=(self.top_logprobs or 0) if self.with_logprobs else None,
        )


@router.post("/v1/responses")
async def responses(asked: ResponsesRequest, frontend: FrontendDep) -> Response:
    """What the model answers to an input."""
    frontend.check_model(asked.model)
    params, messages = asked.params(frontend.window), asked.messages
    admitted = frontend.admitted(lambda: [frontend.speaking.encode_chat(messages)], 1, params)
    answer = _Response(frontend, asked)
    if asked.stream:
        return await EventStream.begun(answer.events(admitted), frontend.error, answer.failure)
    async with admitted as answers:
        await answers.finished()
        (done,) = answers.done()
        return await frontend.prepared(
            lambda: document(answer.document(done, answers.cached_tokens)), "documents"
        )


class _Response:
    """One response, as a document or as events, which are numbered."""

    def __init__(self, frontend: Frontend, asked: ResponsesRequest) -> None:
        self._frontend, self._asked = frontend, asked
        self._names = Names(frontend.tokenizer, by_id=False)
        self._id, self._message_id = new_id("resp_"), new_id("msg_")
        self._created = int(time.time())
        self._number = 0

    def document(self, done: Completion | None, cached: int = 0) -> dict[str, Any]:
        """All of it; before there is a completion, what is known by then."""
        asked = self._asked
        cut = done is not None and done.finish_reason == "length"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if done is None else _status(done),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self._frontend.name,
            "output": [] if done is None else [self._message(done)],
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": self._format()},
            "tool_choice": asked.tool_choice,
            "tools": [],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": asked.truncation,
            "usage": None if done is None else _usage(done, cached),
        }

    def _format(self) -> dict[str, Any]:
        asked = self._asked.text.format
        return asked.model_dump(by_alias=True, exclude_unset=True) if asked else {"type": "text"}

    async def events(
        self, admitted: AbstractAsyncContextManager[Admitted]
    ) -> AsyncGenerator[bytes]:
        async with admitted as answers:
            for kind in ("created", "in_progress"):
                yield self._event(f"response.{kind}", response=self.document(None))
            yield self._event(
                "response.output_item.added", output_index=0, item=self._message(None)
            )
            yield self._of_part("response.content_part.added", part=self._part(""))
            async with aclosing(answers.pieces()) as pieces:
                async for _, piece in pieces:
                    if piece.text or piece.logprobs:
                        said = self._logprobs(piece.logprobs)
                        kind = "response.output_text.delta"
                        yield self._of_part(kind, delta=piece.text, logprobs=said)
            (done,) = answers.done()
            ending = self._ending(done, answers.cached_tokens)
            for told in await self._frontend.prepared(lambda: [*ending], "documents"):
                yield told

    def _ending(self, done: Completion, cached: int) -> Iterator[bytes]:
        """The events that say all of it again."""
        said = self._logprobs(done.logprobs)
        yield self._of_part("response.output_text.done", text=done.text, logprobs=said)
        yield self._of_part("response.content_part.done", part=self._part(done.text, said))
        yield self._event("response.output_item.done", output_index=0, item=self._message(done))
        yield self._event(f"response.{_status(done)}", response=self.document(done, cached))

    def failure(self, error: ApiError) -> bytes:
        """The event that ends a stream before its time."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(document, kind)

    def _of_part(self, kind: str, **fields: Any) -> bytes:
        """An event about the one part of the one message."""
        return self._event(
            kind, item_id=self._message_id, output_index=0, content_index=0, **fields
        )

    def _message(self, done: Completion | None) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress" if done is None else _status(done),
            "content": []
            if done is None
            else [self._part(done.text, self._logprobs(done.logprobs))],
        }

    def _part(self, text: str, said: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(said)}

    def _logprobs(self, entries: Sequence[TokenLogprob] | None) -> list[dict[str, Any]]:
        return [logprobs.of_token(entry, self._names) for entry in entries or ()]


def _status(done: Completion) -> str:
    return "incomplete" if done.finish_reason == "length" else "completed"


def _usage(done: Completion, cached: int) -> dict[str, Any]:
    return {
        "input_tokens": done.usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": done.usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": done.usage["total_tokens"],
    }
