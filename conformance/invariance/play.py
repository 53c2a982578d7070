"""Plays a cell: the requests of its script, served by the engine's own scheduler from one of its caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast
from unittest.mock import patch

import torch
from torch import Tensor

from conformance.experts import is_expert_choice
from conformance.invariance.axes import BLOCK, Cell
from conformance.invariance.scripts import Script, Scripts
from engine import Engine
from engine.backends import BACKENDS
from engine.backends.tiled import Tiled
from engine.cache import Cache, ContiguousCache, PagedCache, Part, RingCache, Room
from engine.cache.store import Int8Store, Store
from engine.compiled import CompiledDecoder
from engine.decoder import Decoder
from engine.errors import CacheFullError, LockstepError
from engine.generate.answer import AnswerText, Piece
from engine.generate.loaded import STEP_TOKENS
from engine.generate.params import SamplingParams
from engine.generate.request import Request
from engine.generate.scheduler import Scheduler
from engine.generate.speculation import NO_DRAFTS, Drafter
from engine.probe import Tap, attached
from engine.spec import MoE

#: The engine's kernels; that of tiles has small ones, so that short sequences fill several.
KERNELS = {known.name: known.attend for known in BACKENDS.values()}
KERNELS["tiled"] = Tiled(queries=4, keys=8)
ROOMS = 16  # for all of a cell's requests at once
CAPACITY = 48  # tokens of a sequence, at most
DRAFTS = 3  # tokens that are drafted at once, at most


class Dictated(Request):
    """A request that answers what its script says, and keeps the logits that it is shown.

    Those of the prompt are shown where it is `watched`, which keeps it from reusing others' prefixes.
    """

    def __init__(self, script: Script, watched: bool, index: int = 0) -> None:
        # One token more than the script has: then its last one is read, and foretells something.
        limit = len(script.ids) - script.prompt + 1
        params = SamplingParams(max_tokens=limit, prompt_logprobs=0 if watched else None)
        prompt = script.ids[: script.prompt]
        super().__init__(prompt, params, AnswerText(None, ()), limit=limit, ends=set(), index=index)
        self.script = script
        self.rows: list[tuple[int, Tensor]] = []  # (position, logits [V])
        self.experts: list[tuple[int, str, Tensor]] = []  # (position, probe, ids [k])

    def choose(self, logits: Tensor) -> Piece:
        position = len(self.tokens) - 1
        self.rows.append((position, logits))
        final = position == len(self.script.ids) - 1
        token = 0 if final else self.script.ids[position + 1]
        self.tokens.append(token)
        self.pieces.append(Piece("", (token,), "length" if final else None, (), self.index))
        return self.pieces[-1]

    def see(self, first: int, logits: Tensor) -> None:
        self.rows += enumerate(logits, first)
        super().see(first, logits)


@dataclass(frozen=True)
class _Script:
    """A drafter that knows what requests will say; unless it is `right`, one token of it at most."""

    right: bool

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        return {request: self._of(request, min(n, DRAFTS)) for request, n in most.items()}

    def _of(self, request: Request, n: int) -> list[int]:
        assert isinstance(request, Dictated)
        first = len(request.tokens)
        known = n if self.right else first % 2
        coming = enumerate(request.script.ids[first : first + n])
        # Every vocabulary has the tokens 0 and 1, and one of them is wrong.
        return [token if i < known else int(token == 0) for i, token in coming]

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


_DRAFTERS: Mapping[str, Drafter] = {
    "none": NO_DRAFTS,
    "right": _Script(right=True),
    "wrong": _Script(right=False),
}


class _Passes:
    """A decoder that tells requests which experts their tokens had.

    `separate` gives each sequence of a packed pass a pass of its own.
    """

    def __init__(self, decoder: Decoder, separate: bool) -> None:
        self.decoder, self.spec, self.separate = decoder, decoder.spec, separate
        self.has_experts = any(isinstance(layer.mlp, MoE) for layer in decoder.spec.layers)
        self.running: Mapping[Request, Room] = {}

    def __call__(
        self, ids: Tensor, cache: Cache, parts: Sequence[Part], last: Sequence[int]
    ) -> Tensor:
        if not self.separate:
            return self._pass(ids, cache, parts, last)
        own = zip(ids.split([part.n for part in parts], dim=1), parts, last, strict=True)
        return torch.cat([self._pass(mine, cache, [part], [n]) for mine, part, n in own], 1)

    def _pass(
        self, ids: Tensor, cache: Cache, parts: Sequence[Part], last: Sequence[int]
    ) -> Tensor:
        if not self.has_experts:  # a graph, which has no probes, may serve
            return cast("Tensor", self.decoder(ids, cache, parts, last))
        whose = {room: request for request, room in self.running.items()}
        places = [(whose[part.room], part.room.length + i) for part in parts for i in range(part.n)]
        with attached(_told(places, ids[0].tolist()), ("", self.decoder)):
            logits: Tensor = self.decoder(ids, cache, parts, last)
        return logits


def _told(places: Sequence[tuple[Request, int]], ids: Sequence[int]) -> Tap:
    """Files the experts of a pass with these tokens, each at a position of a request.

    Those of a wrong draft are nobody's.
    """

    def file(probe: str, value: Tensor) -> Tensor:
        if is_expert_choice(probe):
            for (request, at), token, chosen in zip(places, ids, value.flatten(0, -2), strict=True):
                assert isinstance(request, Dictated)
                if request.script.ids[at] == token:
                    request.experts.append((at, probe, chosen))
        return value

    return file


@dataclass(frozen=True)
class Played:
    """What a cell's requests were shown; `unexercised` says what it was to do and did not."""

    requests: Sequence[Dictated]
    unexercised: str | None = None


def play(cell: Cell, engine: Engine, scripts: Scripts) -> Played:
    """Serves the cell's requests to their ends; raises what the engine raises."""
    decoder = engine.decoder
    if cell["mode"] == "ordinary":
        decoder.use(KERNELS[cell["backend"]])
    if not isinstance(decoder, CompiledDecoder):
        return _play(cell, engine, scripts)
    before = decoder.compiled_steps
    played = _play(cell, engine, scripts)
    if decoder.compiled_steps > before:
        return played
    return replace(played, unexercised="no step was compiled")


def _play(cell: Cell, engine: Engine, scripts: Scripts) -> Played:
    stage = _Stage(cell, engine)
    match cell["history"]:
        case "after another":
            stage.serve([Dictated(scripts.another, watched=True)])
        case "after an aborted":
            stage.abort(Dictated(scripts.another, watched=True))
    match cell["prefix"]:
        case "warm":
            stage.serve([Dictated(scripts.main, watched=True)])
        case "partial":
            stage.serve([Dictated(scripts.kin, watched=True)])
    main = Dictated(scripts.main, watched=cell["prefix"] == "cold")
    if cell["n"] == "3":
        main.branches = [
            Dictated(script, watched=False, index=i) for i, script in enumerate(scripts.branches, 1)
        ]
    beside = {"alone": 0, "beside one": 1, "beside seven": 7}[cell["batch"]]
    others = [Dictated(script, watched=True) for script in scripts.neighbours[:beside]]
    if cell["packing"] == "padded batch":
        stage.pad([*others, main])
        return Played(stage.served)
    hits = stage.hits
    # The main one comes last, as the last one has to make room for the others.
    stage.serve([*others, main], main, _PREEMPTED_AFTER[cell["pre-empted"]])
    return Played(stage.served, stage.unexercised(hits))


#: Tokens of its answer after which a request loses its place; the second time while it is computed anew.
_PREEMPTED_AFTER: Mapping[str, Sequence[int]] = {"no": (), "once": (2,), "twice": (2, 2)}


class _Stage:
    """A scheduler with the cell's cache, and the requests that it served."""

    def __init__(self, cell: Cell, engine: Engine) -> None:
        self.cell, self.engine, self.cache = cell, engine, _cache(cell, engine)
        passes = _Passes(engine.decoder, separate=cell["packing"] == "own pass")
        self.scheduler = Scheduler(
            passes,  # type: ignore[arg-type]
            self.cache,
            max_batch=ROOMS,
            drafter=_DRAFTERS[cell["drafts"]],
        )
        passes.running = self.scheduler.running
        self.chunk = None if cell["chunk"] == "whole" else int(cell["chunk"])
        self.served: list[Dictated] = []

    @property
    def hits(self) -> int:
        """Tokens that were found in the cache so far."""
        return self.cache.hits if isinstance(self.cache, PagedCache) else 0

    def serve(
        self,
        requests: Sequence[Dictated],
        main: Dictated | None = None,
        preemptions: Sequence[int] = (),
    ) -> None:
        """All of them to their ends; when `main` has so many tokens, the cache has room no more."""
        for request in requests:
            self.scheduler.submit(request)
        pending = list(preemptions)
        while not self.scheduler.idle:
            if main is not None and pending and len(main.pieces) >= pending[0]:
                pending.pop(0)
                with _full_once(self.cache):
                    self._step()
            else:
                self._step()
        for request in requests:
            self.served += [request, *request.branches]  # type: ignore[list-item]

    def pad(self, requests: Sequence[Dictated]) -> None:
        """All their tokens as rows of one length, those that stand for nothing being ids like others."""
        longest = max(len(request.script.ids) for request in requests)
        ids = torch.full((len(requests), longest), 1)
        real = torch.zeros_like(ids)
        for b, request in enumerate(requests):
            n = len(request.script.ids)
            mine = slice(longest - n, None) if self.cell["padding"] == "left" else slice(n)
            ids[b, mine], real[b, mine] = torch.tensor(request.script.ids), 1
        places = [(r, position) for r in requests for position in range(len(r.script.ids))]
        packed = [token for request in requests for token in request.script.ids]
        with (
            attached(_told(places, packed), ("", self.engine.decoder)),
            patch.object(self.engine, "cache", self.cell["cache"]),
        ):
            logits = self.engine.logits_of(ids, real)
        for request, rows, mask in zip(requests, logits, real.bool(), strict=True):
            request.rows = list(enumerate(rows[mask]))
        self.served += requests

    def abort(self, request: Dictated) -> None:
        self.scheduler.submit(request)
        for _ in range(3):
            self._step()
        self.scheduler.cancel(request)

    def _step(self) -> None:
        """A pass with a token of each request that decodes, and a chunk of the prompts."""
        decoding = sum(
            len(request.tokens) == room.length + 1
            for request, room in self.scheduler.running.items()
        )
        self.scheduler.step_tokens = decoding + self.chunk if self.chunk else STEP_TOKENS
        for _, said in self.scheduler.step():
            if isinstance(said, LockstepError):
                raise said

    def unexercised(self, hits: int) -> str | None:
        counters = self.scheduler.counters
        if counters.preempted != len(_PREEMPTED_AFTER[self.cell["pre-empted"]]):
            return f"{counters.preempted} requests were pre-empted"
        if self.cell["drafts"] != "none" and not counters.accepted:
            return f"none of {counters.drafted} drafts was accepted"
        if (self.cell["drafts"] == "wrong") != (counters.accepted < counters.drafted):
            return f"{counters.accepted} of {counters.drafted} drafts were accepted"
        for request in self.served:
            if len(request.pieces) != request.limit:
                return f"{len(request.pieces)} tokens were chosen, {request.limit} asked for"
        if self.cell["prefix"] != "cold" and self.hits == hits:
            return "no token was found in the cache"
        return None


def _cache(cell: Cell, engine: Engine) -> Cache:
    """The cell's kind of cache; that of int8 is paged, too."""
    spec, dtype = engine.spec, engine.dtype
    match cell["cache"]:
        case "contiguous":
            return ContiguousCache(spec, CAPACITY, batch=ROOMS, dtype=dtype)
        case "ring":
            longest = CAPACITY
            if cell["chunk"] != "whole":  # who is pre-empted leaves its token of a pass to a prompt
                longest = int(cell["chunk"]) + (cell["pre-empted"] != "no")
            if cell["drafts"] != "none":
                longest = max(longest, 1 + DRAFTS)
            return RingCache(spec, CAPACITY, batch=ROOMS, longest_pass=longest, dtype=dtype)
    store = Int8Store if cell["cache"] == "int8" else Store
    blocks = ROOMS * CAPACITY // BLOCK
    return PagedCache(spec, blocks, BLOCK, dtype=dtype, store=store, poison=True)


@contextmanager
def _full_once(cache: Cache) -> Iterator[None]:
    """The next tokens find no slots, until somebody has given up its room."""
    reserve = cache.reserve
    calls = iter([CacheFullError("a cell of the matrix is to run out of room here")])

    def full_once(parts: Sequence[Part]) -> None:
        for error in calls:
            raise error
        reserve(parts)

    with patch.object(cache, "reserve", full_once):
        yield
