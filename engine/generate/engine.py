"""The engine: from a prompt to a completion.

`generate` and `stream`, and their async forms, make requests of prompts and have a service bring their
pieces: one path for one prompt and for many.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence, Set
from functools import cached_property
from threading import Lock
from typing import Any, overload

from engine.cache import Cache
from engine.compiled import CompiledDecoder, warm
from engine.errors import RequestError, TooLongError
from engine.generate import beam
from engine.generate.answer import AnswerText, Completion, Piece
from engine.generate.beam_params import BeamSearch
from engine.generate.checks import require, shown
from engine.generate.guide import Grammars
from engine.generate.loaded import LoadedModel
from engine.generate.params import SamplingParams
from engine.generate.prompts import (
    Prompt,
    check_known,
    checked_ids,
    is_list_of_prompts,
    prompt_offsets,
)
from engine.generate.request import Request, completions
from engine.generate.sample import Guide
from engine.generate.scheduler import MAX_BATCH, Counters, Scheduler
from engine.generate.service import Service

_MAKING = Lock()  # of what is shared: two threads must not each make one


class Engine(LoadedModel):
    """A loaded model that answers prompts: texts, or ids.

    Any number of threads, coroutines and generators may ask at once. With a paged cache they share its
    passes; else each call has a cache of its own.
    """

    #: The most requests that run at once.
    max_batch: int = MAX_BATCH

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        parse_special: bool = False,
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Any, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Any:
        """A Completion of a text or of token ids; a list of prompts gives a list.

        Special tokens that a text spells out are plain text unless `parse_special` asks for them.
        Raises RequestError, before anything is computed, where any of the prompts cannot be served.
        """
        params = _checked(params)
        requests = self._requests(prompt, params, parse_special)
        if not requests:
            return []
        if params.beams is not None:
            self._search(requests, params.beams)
        else:
            for _ in self._service(requests).pieces(requests):
                pass
        return _answers(prompt, requests)

    async def agenerate(
        self, prompt: Any, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Any:
        """As `generate`, while the event loop goes on.

        A task that is cancelled gives its cache back; a beam search that has begun does so at its end.
        """
        params = _checked(params)
        requests = self._requests(prompt, params, parse_special)
        if not requests:
            return []
        if params.beams is not None:
            await asyncio.to_thread(self._search, requests, params.beams)
        else:
            async for _ in self._service(requests).apieces(requests):
                pass
        return _answers(prompt, requests)

    def _search(self, requests: Sequence[Request], asked: BeamSearch) -> None:
        """Has a beam search serve one request after another, in a cache that has room for each of them."""
        longest = max(request.longest for request in requests)
        cache = self.new_cache(longest, asked.beams, self.step_tokens)
        for request in requests:
            beam.serve(request, self.decoder, cache, self.step_tokens)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> Generator[Piece]:
        """One Piece per token, as soon as it is known; never half a character, never past a stop.

        Of several answers the pieces come in turns, by their index. What `generate` refuses is refused
        here at once, not when the first piece is asked for; and so are a choice of the best answers and
        a beam search, as those are known at the end alone.
        """
        requests = self._to_stream(prompt, params, parse_special)
        return self._service(requests).pieces(requests)

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, parse_special: bool = False
    ) -> AsyncGenerator[Piece]:
        """As `stream`, while the event loop goes on."""
        requests = self._to_stream(prompt, params, parse_special)
        return self.attend(requests)

    def attend(self, requests: Sequence[Request]) -> AsyncGenerator[Piece]:
        """The pieces of all that `request` made, as they come; what was said is in the requests, too."""
        return self._service(requests).apieces(requests)

    def _to_stream(
        self, prompt: Prompt, params: SamplingParams | None, parse_special: bool
    ) -> list[Request]:
        params = _checked(params)
        if params.answers > params.n:
            raise RequestError("best_of above n cannot be streamed: the best are known at the end")
        if params.beams is not None:
            raise RequestError("a beam search cannot be streamed: its answers are known at the end")
        return [self.request(prompt, params, parse_special)]

    def _requests(
        self, prompt: Any, params: SamplingParams | None, parse_special: bool
    ) -> list[Request]:
        prompts = prompt if is_list_of_prompts(prompt) else [prompt]
        return [self.request(each, params, parse_special) for each in prompts]

    def request(
        self, prompt: Prompt, params: SamplingParams | None = None, parse_special: bool = False
    ) -> Request:
        """What a scheduler takes; RequestError where the prompt cannot be served."""
        params = _checked(params)
        ids = self.encode(prompt, parse_special)
        ends = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            ends |= self.eos_ids
        for token in params.named_ids:
            check_known(token, self.spec.vocab_size)
        limit = self._limit(ids, params)
        first, *others = (
            Request(
                ids,
                params,
                self._answer_text(ids, params),
                limit=limit,
                ends=ends,
                index=i,
                guide=self._guide(params, ends),
            )
            for i in range(params.answers)
        )
        first.branches = others
        if params.prompt_logprobs is not None and self.has_tokenizer:
            first.prompt_offsets = prompt_offsets(self.tokenizer, prompt, ids, parse_special)
        return first

    def _guide(self, params: SamplingParams, ends: Set[int]) -> Guide | None:
        """One that an answer has for itself, where it has to look like something."""
        if params.structured is None:
            return None
        if not self.has_tokenizer:
            raise RequestError(
                f"{self.checkpoint.path} has no tokenizer, so no answer can be held to a structure"
            )
        return self._grammars.guide(params.structured, ends)

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.spec.vocab_size)

    def _limit(self, ids: Sequence[int], params: SamplingParams) -> int:
        """How many tokens an answer can have at most."""
        return min(params.max_tokens, self.spec.context - len(ids))

    def _service(self, requests: Sequence[Request]) -> Service:
        """One that can serve these requests: that of all calls where they share a cache."""
        own = None if self.cache == "paged" else self._cache_for(requests)
        with _MAKING:
            service = self._shared if own is None else self._serving(own)
        for request in requests:
            service.scheduler.check(request)
        return service

    @cached_property
    def counters(self) -> Counters:
        """What was done for all calls so far."""
        return Counters()

    def warm(self, progress: Callable[[int], None] = lambda rows: None) -> None:
        """Compiles the steps of short sequences, so that no request waits for them; without graphs nothing.

        Those of 1, 2, 4 … sequences, up to what may run at once; `progress` is told each number before.
        A graph of longer sequences is compiled when one first comes. Meanwhile no step is taken.
        RequestError unless the cache is paged: graphs are of one size of cache, and others come and go.
        """
        if not isinstance(self.decoder, CompiledDecoder):
            return
        require(self.cache == "paged", 'only what stays can be warmed up: load with cache="paged"')
        with _MAKING:
            service = self._shared
        with service.paused():
            most = min(service.scheduler.max_batch, self.pages.pool.available)
            warm(self.decoder, self.pages, most, progress)

    @property
    def scheduler(self) -> Scheduler:
        """That of all calls where they share a paged cache."""
        with _MAKING:
            return self._shared.scheduler

    @cached_property
    def _shared(self) -> Service:
        return self._serving(self.pages)

    def _serving(self, cache: Cache) -> Service:
        drafter = self.drafters(cache.tokens)
        return Service(
            Scheduler(self.decoder, cache, self.step_tokens, self.max_batch, drafter, self.counters)
        )

    def _cache_for(self, requests: Sequence[Request]) -> Cache:
        """With a row for each of the answers, or for as many as may run and there is memory for."""
        capacity = max(request.longest for request in requests)
        rows = min(self.max_batch, sum(len(request.answers) for request in requests))
        while True:
            try:
                return self.new_cache(capacity, rows, self.step_tokens)
            except RequestError:
                if rows == 1:
                    raise
                rows //= 2

    def _answer_text(self, prompt: Sequence[int], params: SamplingParams) -> AnswerText:
        if self.has_tokenizer:
            text = self.tokenizer.stream(skip_special_tokens=True, after=prompt)
            return AnswerText(
                text, params.stop, params.include_stop_str_in_output, params.min_tokens
            )
        if params.stop:
            raise RequestError(
                f"{self.checkpoint.path} has no tokenizer, so stop strings cannot be found; "
                "use stop_token_ids"
            )
        return AnswerText(None, ())

    def encode(self, prompt: Prompt, parse_special: bool = False) -> list[int]:
        """The prompt's ids, checked: known to the model, at least one, and fewer than the context."""
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode_prompt(prompt, parse_special)
        ids = checked_ids(prompt, self.spec.vocab_size)
        if len(ids) >= self.spec.context:
            raise TooLongError(
                f"the prompt has {len(ids)} tokens and the model's context is {self.spec.context}: "
                "no room is left for an answer; shorten the prompt"
            )
        return ids


def _checked(params: SamplingParams | None) -> SamplingParams:
    """Those that were given, or the usual ones; RequestError where they are none."""
    if params is None:
        return SamplingParams()
    require(
        isinstance(params, SamplingParams),
        f"params must be SamplingParams, got {shown(params)}",
    )
    return params


def _answers(prompt: Any, requests: Sequence[Request]) -> Any:
    """Of a prompt one answer, or a list where n are asked for; of a list of prompts a list of these."""
    answers = [completions(request) for request in requests]
    given = [answer if len(answer) > 1 else answer[0] for answer in answers]
    return given if is_list_of_prompts(prompt) else given[0]
