"""/v1/completions: a text, or ids, and what the model goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import Response

from engine.generate import Completion, Piece, SamplingParams
from engine.generate.answer import TokenLogprob
from engine.generate.prompts import Prompt
from engine.server import logprobs
from engine.server.answer import Answer, Choice, FrontendDep
from engine.server.body import StrictRoute
from engine.server.frontend import Admitted, Frontend
from engine.server.schema import MOST_ANSWERS, Generating, Ids, Top, one_of_the_forms, wrong

router = APIRouter(route_class=StrictRoute)

MOST_PROMPTS = 128

Prompts = Annotated[
    str
    | Ids
    | Annotated[list[str], Field(max_length=MOST_PROMPTS, fail_fast=True)]
    | Annotated[list[Ids], Field(max_length=MOST_PROMPTS, fail_fast=True)],
    one_of_the_forms(
        f"a text, a list of token ids, or a list of at most {MOST_PROMPTS} of one of these kinds"
    ),
]


class CompletionRequest(Generating):
    """What OpenAI's API takes, but for `suffix`.

    Special tokens that a text spells out are plain text, unless `parse_special`, an extension, asks for them.
    """

    prompt: Prompts
    max_tokens: int = Field(16, ge=0)
    logprobs: Top | None = None
    echo: bool = False
    best_of: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    parse_special: bool = False

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        if not self.prompt and self.prompt != "":
            raise wrong("prompt", "is an empty list; give at least one")
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise wrong("max_tokens", "can be 0 with echo or prompt_logprobs alone")
        if self.stream and (self.best_of or 1) > 1:
            raise wrong("best_of", "cannot be streamed: the best are known at the end")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [cast("Prompt", self.prompt)]
        return list(cast("list[Prompt]", self.prompt))

    def params(self) -> SamplingParams:
        asked = {"max_tokens": self.max_tokens, "logprobs": self.logprobs, "best_of": self.best_of}
        if self.echo and self.prompt_logprobs is None:
            # Without an answer these are what the engine is asked for, whether or not they are shown.
            asked["prompt_logprobs"] = self.logprobs if self.max_tokens else self.logprobs or 0
        return SamplingParams(**self.choosing() | asked)


@router.post("/v1/completions")
async def completions(asked: CompletionRequest, frontend: FrontendDep) -> Response:
    """What the model goes on with after each of the prompts."""
    frontend.check_model(asked.model)
    prompts = asked.prompts
    admitted = frontend.admitted(
        lambda: prompts, len(prompts), asked.params(), parse_special=asked.parse_special
    )
    return await _Completions(frontend, asked, prompts).respond(admitted)


class _Completions(Answer):
    id_prefix = "cmpl-"
    object = chunk_object = "text_completion"
    asked: CompletionRequest

    def __init__(
        self, frontend: Frontend, asked: CompletionRequest, prompts: Sequence[Prompt]
    ) -> None:
        super().__init__(frontend, asked)
        self._echoes = [frontend.text_of(prompt) if asked.echo else "" for prompt in prompts]

    def choice(self, place: int, done: Completion) -> Choice:
        echo = self._echoes[place // self.asked.n]
        said = self._logprobs(done.token_ids, done.logprobs, len(echo))
        if self.asked.echo and said is not None:
            before = self._logprobs(done.prompt_token_ids, done.prompt_logprobs)
            said = {name: values + said[name] for name, values in (before or {}).items()}
        choice = self._choice(place, echo + done.text, said)
        choice["finish_reason"] = done.finish_reason
        if self.asked.return_token_ids:
            choice["token_ids"] = done.token_ids
        return choice | self.of_prompt(done.prompt_token_ids, done.prompt_logprobs)

    def opening(self, place: int, admitted: Admitted) -> Iterator[Choice]:
        request = admitted.requests[place // self.asked.n]
        of_prompt = self.of_prompt(request.prompt, request.prompt_logprobs)
        if self.asked.echo:
            said = self._logprobs(request.prompt, request.prompt_logprobs)
            yield self._choice(place, self._echoes[place // self.asked.n], said) | of_prompt
        elif of_prompt:
            yield self._choice(place, "") | of_prompt

    def parts(self, place: int, piece: Piece) -> Iterator[Choice]:
        offset = len(self._echoes[place // self.asked.n])
        said = self._logprobs(piece.token_ids, piece.logprobs, offset)
        choice = self._choice(place, piece.text, said)
        if self.asked.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
        if piece.text or said or self.asked.return_token_ids:
            yield choice
        if piece.finish_reason is not None:
            yield {**self._choice(place, ""), "finish_reason": piece.finish_reason}

    def _choice(self, place: int, text: str, said: dict[str, Any] | None = None) -> Choice:
        return {"index": place, "text": text, "logprobs": said, "finish_reason": None}

    def _logprobs(
        self, ids: Sequence[int], entries: Sequence[TokenLogprob | None] | None, offset: int = 0
    ) -> dict[str, Any] | None:
        if self.asked.logprobs is None:
            return None
        return logprobs.of_completion(entries or (), ids, self.names, offset)
