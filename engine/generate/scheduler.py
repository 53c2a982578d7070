"""Continuous batching: requests come and go while one forward pass after another serves them all.

A pass holds one token of every request that decodes, then as much of the waiting prompts as its budget
leaves, in order of arrival. Who comes first is served first: nobody overtakes at the door, and where
the cache runs out of room the request that came last gives its place back, to be computed anew later
(Yu et al. 2022, Orca; Kwon et al. 2023, section 4.5).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from engine.cache import Cache, Part, Room
from engine.decoder import Decoder
from engine.errors import CacheFullError, LockstepError, RequestError
from engine.generate.answer import Piece
from engine.generate.loaded import STEP_TOKENS
from engine.generate.request import Request
from engine.generate.speculation import NO_DRAFTS, Drafter, Share, drafted, followed

MAX_BATCH = 32  # requests that run at once

#: What a step has to say of a request: its next piece, or the error that ended it.
Said = Piece | LockstepError


@dataclass
class Counters:
    """What a scheduler did: forward passes, tokens in them, requests that lost their place.

    `drafted` of the tokens were drafts, of which `accepted` were what the requests chose.
    """

    steps: int = 0
    tokens: int = 0
    preempted: int = 0
    drafted: int = 0
    accepted: int = 0


class Scheduler:
    """Serves requests from one cache, up to `step_tokens` tokens a pass and `max_batch` requests at once.

    It knows no threads and no clock: whoever calls `step` drives it.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: Cache,
        step_tokens: int = STEP_TOKENS,
        max_batch: int = MAX_BATCH,
        drafter: Drafter = NO_DRAFTS,
        counters: Counters | None = None,
    ) -> None:
        self.decoder, self.cache, self.drafter = decoder, cache, drafter
        self.step_tokens = step_tokens
        # With a token for each of those that run, none of them has to wait for a pass of its own.
        self.max_batch = min(max_batch, step_tokens)
        self.running: dict[Request, Room] = {}
        self.waiting: list[Request] = []  # in order of arrival
        self.counters = counters or Counters()
        self._arrivals = count()

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def check(self, request: Request) -> None:
        """Raises RequestError where it could not be served even alone, or is not served here."""
        if request.params.beams is not None:
            raise RequestError("a beam search has passes of its own and is no part of a batch")
        if request.longest > self.cache.capacity:
            raise RequestError(
                f"the prompt and its answer may have {request.longest} tokens, and the KV cache has "
                f"room for {self.cache.capacity}: ask for fewer tokens"
            )

    def submit(self, request: Request) -> None:
        """Takes a request in, behind those that are there; refuses what `check` does."""
        self.check(request)
        for one in request.answers:
            one.arrival = next(self._arrivals)
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Forgets a request and its branches, whatever has become of them."""
        for one in request.answers:
            self._forget(one)

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, Said]]:
        """One forward pass, and what it gives: pieces of requests, or the errors that end them."""
        try:
            shares = self._shares()
        except CacheFullError as error:  # though it is the only one here
            request = next(iter(self.running or self.waiting))
            self._forget(request)
            return [(request, error)]
        if not shares:
            return []
        parts, wanted = [share.part for share in shares], [share.last for share in shares]
        ids = [token for share in shares for token in share.ids]
        batch = torch.tensor([ids], device=self.cache.device)
        logits = self.decoder(batch, self.cache, parts, wanted)[0]
        self.counters.steps += 1
        self.counters.tokens += len(ids)
        return [
            said
            for share, rows in zip(shares, logits.split(wanted), strict=True)
            for said in self._advance(share, rows)
        ]

    # -- what a pass holds -------------------------------------------------------------------------

    def _shares(self) -> list[Share]:
        """Who gets how many tokens in the next pass; the cache has room for all of them.

        What everyone has to read comes first, and drafts last.
        """
        shares = [*(running := self._reserved()), *self._admitted(self._left(running))]
        return drafted(shares, self.drafter, self.decoder.spec, self.cache, self._left(shares))

    def _left(self, shares: Sequence[Share]) -> int:
        """What these leave of a pass's budget."""
        return self.step_tokens - sum(share.part.n for share in shares)

    def _reserved(self) -> list[Share]:
        """The shares of those who run, of whom the last lose their places where the cache is full."""
        while True:
            shares = self._of_running()
            try:
                self.cache.reserve([share.part for share in shares])
            except CacheFullError:
                if len(self.running) == 1:
                    raise
                self._put_back(max(self.running, key=_arrival))
                self.counters.preempted += 1
            else:
                return shares

    def _of_running(self) -> list[Share]:
        """The next token of everyone who decodes, then of the prompts that were begun, the eldest first."""
        pending = {
            request: len(request.tokens) - room.length for request, room in self.running.items()
        }
        # Rows that lie side by side are read as one.
        decoding = sorted(
            (request for request, n in pending.items() if n == 1),
            key=lambda request: self.running[request].row,
        )
        prompts = sorted((request for request, n in pending.items() if n > 1), key=_arrival)
        shares, left = [], self.step_tokens
        for request in (*decoding, *prompts):
            if n := min(pending[request], left):
                shares.append(Share(request, Part(self.running[request], n)))
                left -= n
        return shares

    def _admitted(self, left: int) -> Iterator[Share]:
        """Those who can begin now, with what is left of the budget; CacheFullError where nobody runs."""
        while self.waiting and left and len(self.running) < self.max_batch:
            request = self.waiting[0]
            reuse = not request.wants_prompt_logprobs
            try:
                room = self.cache.admit(request.tokens, request.read_as, reuse)
            except CacheFullError:
                if not self.running:
                    raise
                return
            self.running[self.waiting.pop(0)] = room
            if request.cached_tokens is None:
                request.cached_tokens = room.length
            n = min(len(request.tokens) - room.length, left)
            left -= n
            yield Share(request, Part(room, n))

    # -- what comes of it --------------------------------------------------------------------------

    def _advance(self, share: Share, logits: Tensor) -> Iterator[tuple[Request, Said]]:
        """After a pass that gave these logits [T, V], of the last T tokens of a share."""
        request, room = share.request, share.part.room
        self.cache.learn(room, request.tokens)
        if request.wants_prompt_logprobs:
            request.see(room.length - share.part.n, logits)
        if room.length < len(request.tokens):
            return
        for one in (request, *self._forked(request, room)):
            try:
                for piece in followed(one, share.drafts, logits[-1 - len(share.drafts) :]):
                    yield one, piece
            except LockstepError as error:
                self._forget(one)
                yield one, error
            else:
                self._take_back(one, share.drafts)
                self._settle(one)

    def _take_back(self, request: Request, drafts: Sequence[int]) -> None:
        """Of the drafts that were read those stay which the request chose."""
        if not drafts:
            return
        room = self.running[request]
        read = room.length - len(drafts)
        self.cache.rewind(room, len(request.tokens) - 1)
        self.cache.learn(room, request.tokens)
        self.counters.drafted += len(drafts)
        self.counters.accepted += room.length - read

    def _forked(self, request: Request, room: Room) -> Iterator[Request]:
        """The branches that go on from here, where the prompt has just been read.

        Those for whom there is no room now wait, and read it themselves.
        """
        if request.pieces:
            return
        for branch in request.branches:
            twin = self._twin(room)
            if twin is None:
                self._wait(branch)
            else:
                self.running[branch] = twin
                yield branch

    def _twin(self, room: Room) -> Room | None:
        if len(self.running) == self.max_batch:
            return None
        try:
            return self.cache.fork(room)
        except CacheFullError:
            return None

    def _settle(self, request: Request) -> None:
        """After a token was chosen: is it done, or are all of its keys stale from here on?"""
        if request.done:
            self._forget(request)
        elif len(request.tokens) - 1 in self.decoder.spec.turning_points:
            request.read_as = len(request.tokens)
            self._put_back(request)

    # -- who is where ------------------------------------------------------------------------------

    def _wait(self, request: Request) -> None:
        insort(self.waiting, request, key=_arrival)

    def _put_back(self, request: Request) -> None:
        """Its tokens are kept, and computed anew when there is room."""
        self.cache.close(self.running.pop(request))
        self.drafter.forget(request)
        self._wait(request)

    def _forget(self, request: Request) -> None:
        self.drafter.forget(request)
        if request in self.running:
            self.cache.close(self.running.pop(request))
        elif request in self.waiting:
            self.waiting.remove(request)


def _arrival(request: Request) -> int:
    return request.arrival
