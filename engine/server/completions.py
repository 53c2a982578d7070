"""/v1/completions: a text, or ids, and what the model goes on with."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from engine.generate import Completion, Piece, SamplingParams
from engine.generate.answer import TokenLogprob
from engine.generate.prompts import Prompt
from engine.server import logprobs
from engine.server.answer import AtDesk, envelope, new_id, usage
from engine.server.body import StrictRoute
from engine.server.desk import Desk, Served
from engine.server.logprobs import Names
from engine.server.schema import Generating, TokenId, Top
from engine.server.stream import DONE, EventStream, event

router = APIRouter(route_class=StrictRoute)

MOST_PROMPTS = 128

Ids = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
ManyIds = Annotated[list[Ids], Field(min_length=1, max_length=MOST_PROMPTS)]


class CompletionRequest(Generating):
    """What OpenAI's API takes, but for `suffix`; special tokens in a text are text unless `parse_special`."""

    prompt: str | Ids | Texts | ManyIds
    max_tokens: int = Field(16, ge=1)
    logprobs: Top | None = None
    echo: bool = False
    best_of: int | None = Field(None, ge=1, le=128)
    # An extension
    parse_special: bool = False

    @model_validator(mode="after")
    def _check_best(self) -> CompletionRequest:
        if self.stream and (self.best_of or 1) > 1:
            raise ValueError("best_of cannot be streamed: the best are known at the end")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]

    def params(self) -> SamplingParams:
        echoed = self.logprobs if self.echo else None
        asked = {"max_tokens": self.max_tokens, "logprobs": self.logprobs, "best_of": self.best_of}
        if self.prompt_logprobs is None:
            asked["prompt_logprobs"] = echoed
        return SamplingParams(**{**self._asked(), **asked})


@router.post("/v1/completions")
async def completions(asked: CompletionRequest, desk: AtDesk) -> Response:
    """What the model goes on with after each of the prompts."""
    desk.check_model(asked.model)
    prompts, params = asked.prompts, asked.params()
    served = desk.served(lambda: prompts, len(prompts), params, parse_special=asked.parse_special)
    written = _Written(desk, asked, prompts)
    if asked.stream:
        return await EventStream.begun(written.events(served), desk.error)
    async with served as answers:
        return JSONResponse(written.document(await answers.completions()))


class _Written:
    """The answer to one request, as one document or as chunks."""

    def __init__(self, desk: Desk, asked: CompletionRequest, prompts: Sequence[Prompt]) -> None:
        self._desk, self._asked = desk, asked
        self._envelope = envelope(desk, new_id("cmpl"), "text_completion", int(time.time()))
        self._names = Names(desk.tokenizer, asked.return_tokens_as_token_ids)
        self._echoes = [self._echo(prompt) for prompt in prompts]

    def _echo(self, prompt: Prompt) -> str:
        if not self._asked.echo:
            return ""
        return prompt if isinstance(prompt, str) else self._desk.decode(prompt)

    def document(self, done: Sequence[Completion]) -> dict[str, Any]:
        n = self._asked.n
        choices = [self._choice(place, one) for place, one in enumerate(done)]
        return {**self._envelope, "choices": choices, "usage": usage(done, n)}

    def _choice(self, place: int, done: Completion) -> dict[str, Any]:
        asked, echo = self._asked, self._echoes[place // self._asked.n]
        return {
            "index": place,
            "text": echo + done.text,
            "logprobs": self._logprobs(done.logprobs, len(echo)),
            "finish_reason": done.finish_reason,
        }

    def _logprobs(
        self, entries: Sequence[TokenLogprob] | None, offset: int
    ) -> dict[str, Any] | None:
        if entries is None or self._asked.logprobs is None:
            return None
        return logprobs.of_completion(entries, [e.token_id for e in entries], self._names, offset)
