"""Requests that come and go at random, of a scheduler on a paged cache: a machine for Hypothesis.

Every forward pass is held against the run without a cache, every answer against a sampler of its own,
and after every operation the blocks are counted. Free blocks hold NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from conformance.strategies.asked import LONGEST_PROMPT, Ask, Shape, asks, prompts, shapes
from engine.cache import Cache, PagedCache, Part, Room
from engine.decoder import Decoder
from engine.generate.answer import AnswerText, Piece
from engine.generate.params import SamplingParams
from engine.generate.request import Request
from engine.generate.sample import Sampler
from engine.generate.scheduler import Scheduler
from tests.engine import tiny

CONFIG = tiny.CASE | {
    "vocab_size": 6,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
CLOSE = 1e-4  # logits of size 5 in float32
MODEL = tiny.decoder(CONFIG)


@lru_cache(maxsize=4096)
def naive(ids: tuple[int, ...]) -> Tensor:
    """Logits [T, V] of a whole forward pass."""
    return tiny.logits(MODEL, ids)


class Watched:
    """The decoder, each of whose passes is compared with the naive run of the same requests."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.spec = decoder, decoder.spec
        self.running: dict[Request, Room] = {}  # the scheduler's
        self.rows: dict[Request, Tensor] = {}  # of the last pass, each request's last logits
        self.tokens = 0  # in the last pass

    def __call__(
        self, ids: Tensor, cache: Cache, parts: Sequence[Part], last: Sequence[int]
    ) -> Tensor:
        logits = self.decoder(ids, cache, parts, last)
        self.rows, self.tokens = {}, ids.numel()
        for part, rows in zip(parts, logits[0].split(list(last)), strict=True):
            (request,) = (one for one, room in self.running.items() if room is part.room)
            wanted = naive(tuple(request.tokens[: part.room.length]))[-len(rows) :]
            assert (rows - wanted).abs().max() < CLOSE, "other logits than without a cache"
            self.rows[request] = rows[-1]
        return logits


class Serving(RuleBasedStateMachine):
    """Its operations are those of a caller: submit, submit what continues another, step, cancel."""

    #: What all runs in this process did, so that nothing passes without having been there.
    exercised: ClassVar[Counter[str]] = Counter()
    #: The operations of the last run: of the shortest failing one, when Hypothesis is done.
    operations: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        Serving.operations = []
        self.asked: dict[Request, Ask] = {}
        self.cancelled: set[Request] = set()
        self.parent: dict[Request, Request] = {}
        self.samplers: dict[Request, Sampler] = {}
        self.seen: Counter[str] = Counter()  # of what scheduler and cache count themselves

    def did(self, what: str) -> None:
        Serving.operations.append(what)
        Serving.exercised[what] += 1

    # -- operations --------------------------------------------------------------------------------

    @initialize(shape=shapes())
    def begin(self, shape: Shape) -> None:
        self.shape = shape
        self.cache = PagedCache(MODEL.spec, shape.blocks, shape.block_size, poison=True)
        self.watched = Watched(MODEL)
        decoder: Any = self.watched
        self.scheduler = Scheduler(decoder, self.cache, shape.step_tokens, shape.max_batch)
        self.watched.running = self.scheduler.running

    @rule(prompt=prompts(), ask=asks())
    def submit(self, prompt: list[int], ask: Ask) -> None:
        self.did("submit")
        limit = min(ask.limit, self.shape.capacity - len(prompt) + 1)
        params = SamplingParams(
            max_tokens=limit,
            temperature=1.0,
            seed=ask.seed,
            n=ask.n,
            prompt_logprobs=0 if ask.prompt_logprobs else None,
        )
        first, *others = (
            Request(prompt, params, AnswerText(None, ()), limit=limit, ends=frozenset(), index=i)
            for i in range(ask.n)
        )
        first.branches = others
        for i, request in enumerate((first, *others)):
            self.asked[request] = ask
            self.parent[request] = first
            self.samplers[request] = Sampler(params.branch(i))
        self.scheduler.submit(first)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 3), kept=st.integers(1, LONGEST_PROMPT), tail=prompts(2), ask=asks())
    def go_on(self, which: int, kept: int, tail: list[int], ask: Ask) -> None:
        """The next turn of a conversation: what another has said, and something more."""
        other = list(self.asked)[-1 - which % len(self.asked)]
        self.submit([*other.tokens[:kept], *tail][:LONGEST_PROMPT], ask)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 3))
    def cancel(self, which: int) -> None:
        self.did("cancel")
        request = self.parent[list(self.asked)[-1 - which % len(self.asked)]]
        self.scheduler.cancel(request)
        self.cancelled |= {request, *request.branches}

    @rule()
    def step(self) -> None:
        self.did("step")
        self._step()

    def _step(self) -> None:
        waiting = sorted(self.scheduler.waiting, key=lambda request: request.arrival)
        eldest = min(self.scheduler.running, key=lambda request: request.arrival, default=None)
        before = self._progress(eldest) if eldest else (0, 0)
        self.watched.rows = {}
        said = self.scheduler.step()
        assert all(isinstance(piece, Piece) for _, piece in said), said
        for request, _ in said:
            row = self.watched.rows.get(request, self.watched.rows.get(self.parent[request]))
            assert row is not None, "a piece without a forward pass"
            token = self.samplers[request](row)
            assert request.tokens[-1] == token, "another token than its own sampler's"
        for request in {request for request, _ in said}:
            self._check(request)
        assert self.watched.tokens <= self.shape.step_tokens, "a pass of too many tokens"
        begun = [request not in self.scheduler.waiting for request in waiting]
        assert begun == sorted(begun, reverse=True), "somebody overtakes at the door"
        assert eldest is None or self._progress(eldest) > before, "who came first does not get on"
        self._count(said)

    def _progress(self, request: Request) -> tuple[int, int]:
        room = self.scheduler.running.get(request)
        return len(request.tokens), room.length if room else 0

    def _check(self, request: Request) -> None:
        """What was said of a request is what it holds, and it ends when it should."""
        pieces = [token for piece in request.pieces for token in piece.token_ids]
        assert request.tokens == [*request.prompt, *pieces]
        assert request.done == (len(pieces) == request.limit)
        if request.done and request.index == 0 and self.asked[request].prompt_logprobs:
            assert len(request.prompt_logprobs) == len(request.prompt)
            rows = naive(tuple(request.prompt)).log_softmax(-1)
            for row, entry in zip(rows, request.prompt_logprobs[1:], strict=False):
                assert entry is not None
                assert abs(entry.logprob - row[entry.token_id]) < CLOSE

    def _count(self, said: Sequence[tuple[Request, Any]]) -> None:
        """What the scheduler and the cache did of their own accord."""
        did = Serving.exercised
        did["token"] += len(said)
        did["fork"] += sum(request not in self.watched.rows for request, _ in said)
        did["shared pass"] += len(self.watched.rows) > 1
        for name, count in (
            ("hit", self.cache.hits),
            ("eviction", self.cache.evictions),
            ("pre-emption", self.scheduler.counters.preempted),
        ):
            did[name] += count - self.seen[name]
            self.seen[name] = count

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def blocks_are_counted(self) -> None:
        pool, rooms = self.cache.pool, self.cache.rooms
        holders = Counter(block for room in rooms for block in room.blocks)
        assert pool.holders == [holders[block] for block in range(pool.n)]
        free, known = set(pool.free), self._known()
        unheld = {block for block in range(pool.n) if not holders[block]}
        assert len(free) == len(pool.free), "a block is free twice"
        assert free <= unheld, "a free block is held"
        assert unheld - free == unheld & known, "a block is neither free nor held nor known"
        assert pool.available == len(unheld)
        for store in self.cache.stores():
            for block in free:
                slots = slice(block * self.shape.block_size, (block + 1) * self.shape.block_size)
                assert store.data[:, :, slots].isnan().all(), "a free block is written"

    def _known(self) -> set[int]:
        """The blocks that can be found from the roots of the tree."""
        found, nodes = set(), list(self.cache.prefixes.roots.values())
        while nodes:
            nodes += (children := nodes.pop().children.values())
            found |= {child.block for child in children}
        return found

    @invariant()
    def rooms_are_those_of_requests(self) -> None:
        rooms = list(self.scheduler.running.values())
        assert {id(room) for room in rooms} == {id(room) for room in self.cache.rooms}
        assert len(rooms) == len(self.cache.rooms), "two requests in one room"
        assert len(rooms) <= self.shape.max_batch
        for request, room in self.scheduler.running.items():
            most = math.ceil(len(request.tokens) / self.shape.block_size)
            assert len(room.blocks) <= most, "more than one block is not full"

    def teardown(self) -> None:
        """Everyone is served in the end, and everything is given back."""
        for _ in range(3 * sum(len(r.prompt) + r.limit for r in self.asked)):
            if self.scheduler.idle:
                break
            self._step()
            self.blocks_are_counted()
        assert self.scheduler.idle, "it never ends"
        assert all(request.done for request in set(self.asked) - self.cancelled)
        assert not self.cache.rooms
        assert self.cache.pool.available == self.shape.blocks, "blocks are lost"
