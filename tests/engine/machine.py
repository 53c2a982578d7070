"""Requests that come and go at random, of a scheduler on a small cache: a machine for Hypothesis.

Every forward pass is held against the run without a cache, every answer against a sampler of its own,
and after every operation the blocks are counted. Free blocks hold NaN. In any step there may be drafts,
right ones and wrong ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from conformance.strategies.asked import (
    LONGEST_PROMPT,
    Ask,
    Plan,
    Shape,
    asks,
    plans,
    prompts,
    shapes,
)
from engine.cache import Cache, ContiguousCache, PagedCache, Part, RingCache, Room
from engine.decoder import Decoder
from engine.generate.answer import AnswerText, Piece
from engine.generate.params import SamplingParams
from engine.generate.request import Request
from engine.generate.sample import Sampler
from engine.generate.scheduler import Scheduler
from engine.spec import LongRopeScaling, ModelSpec
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
TURN = 7  # tokens, behind which other frequencies hold


def _turning(spec: ModelSpec) -> ModelSpec:
    """The model with a layer that has a window, and one whose frequencies change with the length."""
    (layer,) = spec.layers
    assert layer.attn.rope is not None
    short = [1.0] * (layer.attn.rope.dim // 2)
    scaling = LongRopeScaling(tuple(short), tuple(3.0 + n for n in short), TURN)
    rope = replace(layer.attn.rope, scaling=scaling)
    window, turning = replace(layer.attn, window=3), replace(layer.attn, rope=rope)
    return replace(spec, layers=(replace(layer, attn=window), replace(layer, attn=turning)))


PLAIN = tiny.decoder(CONFIG)
TURNING = tiny.decoder_of(_turning(PLAIN.spec))


@lru_cache(maxsize=4096)
def naive(model: Decoder, ids: tuple[int, ...], long: bool) -> Tensor:
    """Logits [T, V] of a whole forward pass, as the beginning of a `long` sequence or by itself."""
    read_as = TURN + 1 if long else None
    with torch.inference_mode():
        return model(torch.tensor([ids]), ContiguousCache(model.spec, len(ids)), read_as=read_as)[0]


def alone(model: Decoder, ids: Sequence[int]) -> Tensor:
    """Logits [V] after a sequence that ends there."""
    return naive(model, tuple(ids), len(ids) > TURN)[-1]


class Watched:
    """The decoder, each of whose passes is compared with the naive run of the same requests."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.spec = decoder, decoder.spec
        self.running: dict[Request, Room] = {}  # the scheduler's
        self.rows: dict[Request, dict[int, Tensor]] = {}  # of the last pass, by position
        self.drafts: dict[Request, list[int]] = {}  # in the last pass
        self.tokens = 0  # in the last pass

    def __call__(
        self, ids: Tensor, cache: Cache, parts: Sequence[Part], last: Sequence[int]
    ) -> Tensor:
        logits = self.decoder(ids, cache, parts, last)
        self.rows, self.drafts, self.tokens = {}, {}, ids.numel()
        read = ids[0].split([part.n for part in parts])
        for part, mine, rows in zip(parts, read, logits[0].split(list(last)), strict=True):
            (request,) = (one for one, room in self.running.items() if room is part.room)
            end = part.room.length
            whole = [*request.tokens[: end - part.n], *mine.tolist()]
            assert whole[: len(request.tokens)] == request.tokens[:end], "other tokens than its own"
            self.drafts[request] = whole[len(request.tokens) :]
            long = max(part.room.read_as or 0, end) > TURN
            wanted = naive(self.decoder, tuple(whole), long)[-len(rows) :]
            assert (rows - wanted).abs().max() < CLOSE, "other logits than without a cache"
            self.rows[request] = dict(enumerate(rows, end - len(rows)))
        return logits


class Planned:
    """A drafter that is told which of its drafts are to be what the request will choose.

    It proposes as many as it is told, whatever is asked for.
    """

    def __init__(self, model: Decoder, samplers: Mapping[Request, Sampler]) -> None:
        self.model, self.samplers = model, samplers
        self.plan: Plan = ()

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        assert all(n > 0 for n in most.values()), "drafts that nobody has a use for"
        return {request: self._drafts(request) for request in most}

    def _drafts(self, request: Request) -> list[int]:
        asked = self.samplers[request]
        sampler = Sampler(asked.params)
        sampler.generator.set_state(asked.generator.get_state())
        ids = list(request.tokens)
        for right in self.plan:
            token = sampler(alone(self.model, ids))
            ids.append(token if right else (token + 1) % CONFIG["vocab_size"])
        return ids[len(request.tokens) :]

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


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

    @initialize(shape=shapes(), plan=plans())
    def begin(self, shape: Shape, plan: Plan) -> None:
        self.shape, self.plan = shape, plan
        self.model = PLAIN if shape.kind == "paged" else TURNING
        self.cache = self._cache(shape)
        self.watched = Watched(self.model)
        self.drafter = Planned(self.model, self.samplers)
        decoder: Any = self.watched
        self.scheduler = Scheduler(
            decoder, self.cache, shape.step_tokens, shape.max_batch, self.drafter
        )
        self.watched.running = self.scheduler.running

    def _cache(self, shape: Shape) -> PagedCache | RingCache:
        if shape.kind.startswith("paged"):
            return PagedCache(self.model.spec, shape.blocks, shape.block_size, poison=True)
        return RingCache(
            self.model.spec,
            shape.capacity,
            batch=shape.max_batch,
            longest_pass=shape.step_tokens,
        )

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

    @rule(plan=plans())
    def step(self, plan: Plan) -> None:
        """A pass with drafts for who decodes, of which those are right that the plan says."""
        self.did("step")
        self.drafter.plan = plan
        self._step()

    def _step(self) -> None:
        waiting = sorted(self.scheduler.waiting, key=lambda request: request.arrival)
        eldest = min(self.scheduler.running, key=lambda request: request.arrival, default=None)
        before = self._progress(eldest) if eldest else (0, 0)
        held = {request: len(request.tokens) for request in self.asked}
        self.watched.rows, self.watched.drafts = {}, {}
        said = self.scheduler.step()
        went_on = dict.fromkeys(request for request, _ in said)
        self._follow(said, held)
        for request in went_on:
            self._check(request)
            self._check_drafts(request, request.tokens[held[request] :])
        assert self.watched.tokens <= self.shape.step_tokens, "a pass of too many tokens"
        begun = [r not in self.scheduler.waiting or r in went_on for r in waiting]
        assert begun == sorted(begun, reverse=True), "somebody overtakes at the door"
        assert eldest is None or self._progress(eldest) > before, "who came first does not get on"
        self._count(said)

    def _follow(self, said: Sequence[tuple[Request, Any]], held: Mapping[Request, int]) -> None:
        """Each token is its own sampler's, after the logits of the token before it."""
        tokens = {request: request.tokens[:n] for request, n in held.items()}
        for request, piece in said:
            assert isinstance(piece, Piece), piece
            rows = self.watched.rows.get(request, self.watched.rows.get(self.parent[request], {}))
            row = rows.get(len(tokens[request]) - 1)
            assert row is not None, "a piece without a forward pass"
            token = self.samplers[request](row)
            assert piece.token_ids == (token,), "another token than its own sampler's"
            tokens[request].append(token)
        assert all(request.tokens == mine for request, mine in tokens.items())

    def _check_drafts(self, request: Request, chosen: Sequence[int]) -> None:
        """Of right drafts each one is taken, and a token more."""
        drafts = self.watched.drafts.get(request, [])
        right = sum(chosen[:n] == drafts[:n] for n in range(1, len(drafts) + 1))
        assert len(chosen) == right + 1 or request.done, "less tokens than drafts were right"
        room = self.scheduler.running.get(request)
        assert room is None or room.length == len(request.tokens) - 1, "tokens to be read again"
        Serving.exercised["right draft"] += right
        Serving.exercised["wrong draft"] += len(drafts) - right

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
            long = len(request.prompt) > TURN
            rows = naive(self.model, tuple(request.prompt), long).log_softmax(-1)
            for row, entry in zip(rows, request.prompt_logprobs[1:], strict=False):
                assert entry is not None
                assert abs(entry.logprob - row[entry.token_id]) < CLOSE

    def _count(self, said: Sequence[tuple[Request, Any]]) -> None:
        """What the scheduler and the cache did of their own accord."""
        did = Serving.exercised
        did["token"] += len(said)
        did["fork"] += sum(request not in self.watched.rows for request, _ in said)
        did["turn"] += sum(len(r.tokens) == TURN + 1 for r in self.scheduler.waiting if r.pieces)
        did["shared pass"] += len(self.watched.rows) > 1
        counts = {"pre-emption": self.scheduler.counters.preempted}
        if isinstance(self.cache, PagedCache):
            counts |= {"hit": self.cache.hits, "eviction": self.cache.evictions}
        for name, count in counts.items():
            did[name] += count - self.seen[name]
            self.seen[name] = count

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def blocks_are_counted(self) -> None:
        if not isinstance(self.cache, PagedCache):
            return
        pool, rooms = self.cache.pool, self.cache.rooms
        holders = Counter(block for room in rooms for block in room.blocks)
        assert pool.holders == [holders[block] for block in range(pool.n)]
        free, known = set(pool.free), self._known(self.cache)
        unheld = {block for block in range(pool.n) if not holders[block]}
        assert len(free) == len(pool.free), "a block is free twice"
        assert free <= unheld, "a free block is held"
        assert unheld - free == unheld & known, "a block is neither free nor held nor known"
        assert pool.available == len(unheld)
        for store in self.cache.stores():
            for block in free:
                slots = slice(block * self.shape.block_size, (block + 1) * self.shape.block_size)
                assert store.data[:, :, slots].isnan().all(), "a free block is written"

    def _known(self, cache: PagedCache) -> set[int]:
        """The blocks that can be found from the roots of the tree."""
        found, nodes = set(), list(cache.prefixes.roots.values())
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
        self.drafter.plan = self.plan
        for _ in range(4 * sum(len(r.prompt) + r.limit for r in self.asked)):
            if self.scheduler.idle:
                break
            self._step()
            self.blocks_are_counted()
        assert self.scheduler.idle, "it never ends"
        assert all(request.done for request in set(self.asked) - self.cancelled)
        assert not self.cache.rooms
        if isinstance(self.cache, PagedCache):
            assert self.cache.pool.available == self.shape.blocks, "blocks are lost"
