"""What the answers of completions and of chats have in common: an envelope, choices, chunks and the usage."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.responses import Response

from engine.generate import Completion, Piece
from engine.generate.answer import TokenLogprob
from engine.server import logprobs
from engine.server.document import document
from engine.server.frontend import Admitted, Frontend
from engine.server.logprobs import Names
from engine.server.schema import Generating
from engine.server.stream import DONE, EventStream, event

Choice = dict[str, Any]


def _frontend(request: Request) -> Frontend:
    frontend: Frontend = request.app.state.frontend
    return frontend


FrontendDep = Annotated[Frontend, Depends(_frontend)]


def new_id(kind: str) -> str:
    return kind + secrets.token_hex(12)


class Answer(ABC):
    """The answer to one request: a document, or chunks that add up to it."""

    id_prefix: str
    object: str
    chunk_object: str

    def __init__(self, frontend: Frontend, asked: Generating) -> None:
        self.frontend, self.asked = frontend, asked
        self.names = Names(frontend.tokenizer, asked.return_tokens_as_token_ids)
        self._id, self._created = new_id(self.id_prefix), int(time.time())

    @abstractmethod
    def choice(self, place: int, done: Completion) -> Choice:
        """One answer of the document."""

    @abstractmethod
    def opening(self, place: int, admitted: Admitted) -> Iterator[Choice]:
        """What comes before the first piece of an answer."""

    @abstractmethod
    def parts(self, place: int, piece: Piece) -> Iterator[Choice]:
        """What a piece adds; the last of them has the finish reason, and nothing else."""

    async def respond(self, admitted: AbstractAsyncContextManager[Admitted]) -> Response:
        """The document when all is done, or a stream that has begun."""
        if self.asked.stream:
            return await EventStream.begun(self._events(admitted), self.frontend.error)
        async with admitted as answers:
            await answers.finished()
            return await self.frontend.prepared(lambda: self._document(answers), "documents")

    def extras(self, admitted: Admitted) -> dict[str, Any]:
        """Fields beside the choices, of a document or of the first chunk."""
        return {}

    def of_prompt(
        self, ids: Sequence[int], entries: Sequence[TokenLogprob | None] | None
    ) -> dict[str, Any]:
        """The extensions that say something of the prompt."""
        said: dict[str, Any] = {}
        if self.asked.return_token_ids:
            said["prompt_token_ids"] = list(ids)
        if self.asked.prompt_logprobs is not None:
            said["prompt_logprobs"] = logprobs.of_prompt(entries or (), self.names)
        return said

    def _document(self, admitted: Admitted) -> Response:
        done = admitted.done()
        choices = [self.choice(place, one) for place, one in enumerate(done)]
        head = {**self._envelope(self.object), "choices": choices, "usage": self._usage(done)}
        return document({**head, **self.extras(admitted)})

    async def _events(
        self, admitted: AbstractAsyncContextManager[Admitted]
    ) -> AsyncGenerator[bytes]:
        begun: set[int] = set()
        async with admitted as answers:
            async with aclosing(answers.pieces()) as pieces:
                async for place, piece in pieces:
                    if place not in begun:
                        opening = partial(self._opening, place, answers, first=not begun)
                        begun.add(place)
                        for chunk in await self.frontend.prepared(opening, "documents"):
                            yield chunk
                    for choice in self.parts(place, piece):
                        yield self._chunk([choice])
            if self.asked.includes_usage:
                yield self._chunk([], usage=self._usage(answers.done()))
        yield DONE

    def _opening(self, place: int, admitted: Admitted, first: bool) -> list[bytes]:
        """The chunks that begin an answer; those of the first have what stands beside the choices."""
        extras = self.extras(admitted) if first else {}
        return [self._chunk([choice], **extras) for choice in self.opening(place, admitted)]

    def _chunk(self, choices: list[Choice], **extras: Any) -> bytes:
        usage = {"usage": None} if self.asked.includes_usage else {}
        return event({**self._envelope(self.chunk_object), "choices": choices, **usage, **extras})

    def _envelope(self, object: str) -> dict[str, Any]:
        head = {"id": self._id, "object": object, "created": self._created}
        return {**head, "model": self.frontend.name}

    def _usage(self, done: Sequence[Completion]) -> dict[str, int]:
        """Of all prompts together; each completion has the figures of all that belong to its prompt.

        What the cache knew of them is not told: a stream's usage is that of the answer as a whole.
        """
        firsts = done[:: self.asked.n]
        return {name: sum(one.usage[name] for one in firsts) for name in firsts[0].usage}
