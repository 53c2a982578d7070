"""/v1/chat/completions: a conversation, and the assistant's next message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import JSONResponse, Response

from engine.generate import Completion, SamplingParams
from engine.server.answer import AtDesk, envelope, new_id, usage
from engine.server.body import StrictRoute
from engine.server.desk import Desk
from engine.server.schema import Generating, Strict, Top

router = APIRouter(route_class=StrictRoute)


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class ChatRequest(Generating):
    """What OpenAI's API takes of text."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: Top | None = None

    def params(self, window: int) -> SamplingParams:
        most = self.max_completion_tokens or self.max_tokens or window
        return SamplingParams(**{**self._asked(), "max_tokens": most})


@router.post("/v1/chat/completions")
async def chat(asked: ChatRequest, desk: AtDesk) -> Response:
    """The assistant's next message, or n of them to choose from."""
    desk.check_model(asked.model)
    params = asked.params(desk.window)
    messages = [message.model_dump() for message in asked.messages]
    served = desk.served(lambda: [desk.engine.tokenizer.encode_chat(messages)], 1, params)
    async with served as answers:
        done = await answers.completions()
    document = envelope(desk, new_id("chatcmpl"), "chat.completion", int(time.time()))
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", "content": one.text},
            "finish_reason": one.finish_reason,
            "logprobs": None,
        }
        for place, one in enumerate(done)
    ]
    return JSONResponse({**document, "choices": choices, "usage": usage(done, asked.n)})
