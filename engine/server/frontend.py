"""Where requests are admitted: places in the queue, preparation beside the event loop, and the engine.

What a request asks of the engine is what `Engine.generate` is asked: the same SamplingParams, the same
requests, the same passes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from engine.errors import LockstepError, RequestError, TooLongError
from engine.generate import Completion, Engine, Piece, SamplingParams
from engine.generate.prompts import Prompt
from engine.generate.request import Request, completions
from engine.server.errors import ApiError
from engine.server.exchange import InFlight, internal, log
from engine.server.metrics import Metrics, State
from engine.server.settings import Settings
from engine.tokenizer import Tokenizer

T = TypeVar("T")


class Frontend:
    """One engine with its queue.

    RequestError where the engine's cache is not paged: answers would have no passes in common.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        if engine.cache != "paged":
            raise RequestError('a server needs an engine with one cache for all: cache="paged"')
        self.engine, self.settings = engine, settings
        self.name = settings.served_name or engine.checkpoint.path.stem
        self.created = int(time.time())
        self.metrics, self.in_flight = Metrics(), InFlight()
        self.metrics.registry.register(State(self))
        #: The most tokens of a prompt and its answer together.
        self.window = min(engine.spec.context, engine.pages.capacity + 1)
        self._taken = 0
        # Steps are taken in threads of another pool: no text, template or grammar holds them up. A
        # grammar can take seconds to read, and holds up others of its kind alone.
        self._pools = {
            kind: ThreadPoolExecutor(2, thread_name_prefix=f"lockstep-{kind}")
            for kind in ("texts", "grammars", "documents", "inspections", "graphs")
        }
        self._made: set[Future[Any]] = set()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None of a model that has none: it takes and gives ids alone."""
        return self.engine.tokenizer if self.engine.has_tokenizer else None

    @property
    def speaking(self) -> Tokenizer:
        """The same where there must be one; RequestError else."""
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer: it takes ids at /v1/completions alone")
        return self.tokenizer

    @property
    def model(self) -> dict[str, Any]:
        """The model as the API lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "lockstep",
            "max_model_len": self.window,
        }

    def text_of(self, prompt: Prompt) -> str:
        """That of a prompt which may have come as ids: without special tokens, as answers are."""
        if isinstance(prompt, str) or self.tokenizer is None:
            return str(prompt) if isinstance(prompt, str) else ""
        return self.tokenizer.decode(prompt, skip_special_tokens=True)

    def check_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise ApiError(
                404,
                f"there is no model {name!r:.80} here; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def error(self, fault: Exception) -> ApiError:
        """What a client is told of what ended a request; it need not know where the model's files are."""
        if isinstance(fault, ApiError):
            return fault
        if not isinstance(fault, LockstepError):
            return internal(fault, self.settings)
        message = str(fault).replace(str(self.engine.checkpoint.path), self.name)
        code = "context_length_exceeded" if isinstance(fault, TooLongError) else None
        return ApiError(400 if isinstance(fault, RequestError) else 500, message, code=code)

    @property
    def running(self) -> int:
        return len(self.engine.scheduler.running)

    @property
    def waiting(self) -> int:
        return max(0, self._taken - self.running)

    @asynccontextmanager
    async def admitted(
        self,
        prompts: Callable[[], Sequence[Prompt]],
        n: int,
        params: SamplingParams,
        *,
        parse_special: bool = False,
    ) -> AsyncIterator[Admitted]:
        """The answers to n prompts, which are made beside the event loop; they have places meanwhile."""
        since = time.perf_counter()
        with self._places(n * params.answers):
            kind = "texts" if params.structured is None else "grammars"
            requests = await self.prepared(
                lambda: [self._request(each, params, parse_special) for each in prompts()], kind
            )
            yield Admitted(self, requests, since)
            self._log(requests)

    async def warmed(self) -> None:
        """Has the engine compile the steps that requests would wait for."""
        await self.prepared(lambda: self.engine.warm(_log_compiling), "graphs")

    async def prepared(self, make: Callable[[], T], kind: str = "texts") -> T:
        """What `make` gives, made beside the event loop."""
        future = self._pools[kind].submit(make)
        self._made.add(future)
        future.add_done_callback(self._made.discard)
        return await asyncio.wrap_future(future)

    @property
    def at_work(self) -> bool:
        """Whether something is made that nobody may wait for any more: a thread cannot be stopped."""
        return any(future.running() for future in tuple(self._made))

    async def placed(self, make: Callable[[], T], kind: str) -> T:
        """The same, in a place of the queue."""
        with self._places(1):
            return await self.prepared(make, kind)

    def _log(self, requests: Sequence[Request]) -> None:
        """How long prompts and answers were; what they say where the operator wants to know."""
        for request in requests:
            made = [len(answer.tokens) - len(answer.prompt) for answer in request.answers]
            log.info("a prompt of %d tokens, answers of %s", len(request.prompt), made)
            if self.settings.log_prompts and self.tokenizer is not None:
                texts = ["".join(p.text for p in answer.pieces) for answer in request.answers]
                log.info("prompt %r, answers %r", self.tokenizer.decode(request.prompt), texts)

    def _request(self, prompt: Prompt, params: SamplingParams, parse_special: bool) -> Request:
        request = self.engine.request(prompt, params, parse_special)
        room = self.window - len(request.prompt)
        if room < 1:
            raise TooLongError(
                f"the prompt has {len(request.prompt)} tokens and the KV cache has room for "
                f"{self.window}: no room is left for an answer; shorten the prompt"
            )
        for answer in request.answers:
            answer.limit = min(answer.limit, room)
        return request

    @contextmanager
    def _places(self, n: int) -> Iterator[None]:
        most = self.engine.max_batch + self.settings.max_queue
        if n > most:
            raise ApiError(400, f"{n} answers were asked for at once; {most} are the most")
        if self._taken + n > most:
            raise ApiError(
                429,
                f"{self._taken} answers are being made or wait, and {most} are the most: ask again later",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._taken += n
        try:
            yield
        finally:
            self._taken -= n


class Admitted:
    """Requests that the engine answers; `answers` are all that are made, by their place in the API."""

    def __init__(self, frontend: Frontend, requests: Sequence[Request], since: float) -> None:
        self._frontend, self.requests, self._since = frontend, requests, since
        self.answers = [answer for request in requests for answer in request.answers]

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        """Each piece with the place of its answer, as soon as it is known."""
        metrics = self._frontend.metrics
        metrics.prompt_tokens.inc(sum(len(request.prompt) for request in self.requests))
        said, times = [0] * len(self.answers), [self._since] * len(self.answers)
        async with aclosing(self._frontend.engine.attend(self.requests)) as steps:
            async for _ in steps:
                for place, answer in enumerate(self.answers):
                    for piece in answer.pieces[said[place] :]:
                        now = time.perf_counter()
                        if piece.token_ids:
                            metrics.token(now - times[place], first=said[place] == 0)
                        said[place], times[place] = said[place] + 1, now
                        yield place, piece

    async def finished(self) -> None:
        """Waits until all answers are done."""
        async with aclosing(self.pieces()) as pieces:
            async for _ in pieces:
                pass

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompts the cache knew from earlier requests."""
        return sum(request.cached_tokens or 0 for request in self.requests)

    def done(self) -> list[Completion]:
        """The answers, of which all are."""
        return [done for request in self.requests for done in completions(request)]


def _log_compiling(rows: int) -> None:
    log.info("compiling a step of up to %d sequences", rows)
