"""Beam search: the beginnings of answers that are the most likely go on side by side.

What is chosen, when the search ends and what an answer scores is transformers' meaning (its
`_beam_search`, without sampling): the logits' processors are given log-probabilities. Computation is
apart from choice: `Search` knows no model and no cache, `Lines` nothing of scores.
Shapes: R beams that run, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import Cache, Part, Room
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.generate.answer import TokenLogprob
from engine.generate.beam_params import BeamSearch
from engine.generate.logprobs import token_logprob, top
from engine.generate.processors import History, penalised
from engine.generate.request import Request
from engine.generate.sample import finite_best


@torch.inference_mode()
def serve(request: Request, decoder: Decoder, cache: Cache, step_tokens: int) -> None:
    """Gives a request and its branches the best answers that its beams find, the best first.

    The cache is the search's own, with a row for each beam; a pass has at most `step_tokens` tokens.
    RequestError where fewer answers are found than were asked for.
    """
    search, lines = Search(request), Lines(decoder, cache, step_tokens)
    try:
        logits = lines.begin([request.tokens], see=request)
        parents = search.push(logits)
        while not search.done:
            sequences = [[*request.prompt, *beam.tokens] for beam in search.running]
            if len(sequences[0]) - 1 in decoder.spec.turning_points:
                logits = lines.begin(sequences)
            else:
                logits = lines.go_on(parents, [tokens[-1] for tokens in sequences])
            parents = search.push(logits)
    finally:
        lines.close()
    search.tell()


# -- what is chosen --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beam:
    """The beginning of an answer, the sum of its log-probabilities, and what is recorded of its tokens."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    entries: tuple[TokenLogprob, ...] = ()


class Search:
    """The beams of one request, token by token.

    `running` are those that go on and `ended` those that are answers, the best first; of neither there
    are more than beams were asked for.
    """

    def __init__(self, request: Request) -> None:
        assert request.params.beams is not None
        self.request = request
        self.asked: BeamSearch = request.params.beams
        self.running: list[Beam] = [Beam()]
        self.ended: list[Beam] = []
        self.length = 0  # of the beginnings, in tokens

    @property
    def done(self) -> bool:
        """Whether nobody can go on, or nobody who goes on is expected to be among the answers."""
        if not self.running:
            return True
        if len(self.ended) < self.asked.beams:
            return False
        return self.asked.early_stopping is True or self._hope() <= self._score(self.ended[-1])

    def push(self, logits: Tensor) -> list[int]:
        """After logits [R, V]: for each that runs now, whose continuation it is of those that ran."""
        for row in logits:
            finite_best(row)
        scores = self._scores(logits)
        totals = scores + scores.new_tensor([[beam.total] for beam in self.running])
        if not totals.max() < torch.inf:
            raise RequestError(
                "biases and penalties take an answer's score beyond the largest number; "
                "ask for smaller ones"
            )
        self.length += 1
        last = self.length == self.request.limit
        next_ones: list[Beam] = []
        parents: list[int] = []
        for rank, (place, total) in enumerate(top(totals.flatten(), self._kept(totals.numel()))):
            parent, token = divmod(place, totals.shape[1])
            ends = last or token in self.request.ends
            if rank >= self.asked.beams if ends else len(parents) == self.asked.beams:
                continue
            entries = self._entries(parent, token, logits, scores)
            beam = Beam((*self.running[parent].tokens, token), total, entries)
            if ends:
                self._end(beam)
            else:
                next_ones.append(beam)
                parents.append(parent)
        self.running = next_ones
        return parents

    def tell(self) -> None:
        """Dictates the answers to the request and its branches."""
        answers = (self.request, *self.request.branches)
        if len(self.ended) < len(answers):
            raise RequestError(
                f"{len(answers)} answers were asked for and the beams found {len(self.ended)}: bad words, "
                "biases, repeats or forced tokens forbid all others"
            )
        for answer, beam in zip(answers, self.ended, strict=False):
            answer.dictate(beam.tokens, beam.entries, beam.total)

    def _kept(self, candidates: int) -> int:
        """How many are looked at: enough to go on with even if every beam is followed by every end."""
        return min(candidates, self.asked.beams * max(2, 1 + len(self.request.ends)))

    def _scores(self, logits: Tensor) -> Tensor:
        """What is added to the beams' totals, float64 [R, V]."""
        request = self.request
        logprobs = logits.cpu().double().log_softmax(-1)
        if not request.params.penalises:
            return logprobs
        return torch.stack(
            [
                penalised(row, request.params, self._history(beam))
                for row, beam in zip(logprobs, self.running, strict=True)
            ]
        )

    def _history(self, beam: Beam) -> History:
        request = self.request
        return History(request.prompt, beam.tokens, request.ends, request.limit)

    def _entries(
        self, parent: int, token: int, logits: Tensor, scores: Tensor
    ) -> tuple[TokenLogprob, ...]:
        """What is recorded of the parent's tokens and of this one."""
        params = self.request.params
        if params.logprobs is None:
            return ()
        asked = logits if params.logprobs_mode == "raw" else scores
        return (*self.running[parent].entries, token_logprob(asked[parent], token, params.logprobs))

    def _end(self, beam: Beam) -> None:
        self.ended = sorted([*self.ended, beam], key=self._score, reverse=True)[: self.asked.beams]

    def _score(self, ended: Beam) -> float:
        return self.asked.score(ended.total, len(ended.tokens))

    def _hope(self) -> float:
        """What the best of those that run may come to score, as `early_stopping` has it."""
        longest = self.asked.early_stopping == "never" and self.asked.length_penalty > 0
        length = self.request.limit if longest else self.length
        return self.asked.score(self.running[0].total, length)


# -- what is computed ------------------------------------------------------------------------------


class Lines:
    """The rooms of the beams that run, in their order."""

    def __init__(self, decoder: Decoder, cache: Cache, step_tokens: int) -> None:
        self.decoder, self.cache, self.step_tokens = decoder, cache, step_tokens
        self.rooms: list[Room] = []

    def begin(self, sequences: Sequence[list[int]], see: Request | None = None) -> Tensor:
        """Logits [R, V] after these sequences, read from their first token on.

        `see` is shown what is foretold of a prompt's tokens, if it wants to know.
        """
        self.close()
        return torch.stack([self._read(tokens, see) for tokens in sequences])

    def _read(self, tokens: list[int], see: Request | None) -> Tensor:
        room = self.cache.admit(tokens, len(tokens), reuse=False)
        self.rooms.append(room)
        while room.length < len(tokens):
            first = room.length
            chunk = tokens[first : first + self.step_tokens]
            whole = see is not None and see.wants_prompt_logprobs
            logits = self._pass(chunk, [Part(room, len(chunk))], last_only=not whole)
            if see is not None and whole:
                see.see(first, logits)
        return logits[-1]

    def go_on(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits [R, V] after one token for each continuation of those that ran, which are its parents."""
        self._follow(parents)
        # Rows that lie side by side are read as one.
        order = sorted(range(len(parents)), key=lambda i: self.rooms[i].row)
        passes = [order[i : i + self.step_tokens] for i in range(0, len(order), self.step_tokens)]
        rows = [
            self._pass([tokens[i] for i in some], [Part(self.rooms[i], 1) for i in some])
            for some in passes
        ]
        return torch.cat(rows)[torch.tensor(order).argsort()]

    def _follow(self, parents: Sequence[int]) -> None:
        """The first continuation of a beam has its room, every other one a copy of it."""
        for i, room in enumerate(self.rooms):
            if i not in parents:  # first, so that there is room for the copies
                self.cache.close(room)
        given: set[int] = set()
        rooms = []
        for parent in parents:
            room = self.rooms[parent]
            rooms.append(self.cache.fork(room) if parent in given else room)
            given.add(parent)
        self.rooms = rooms

    def _pass(self, ids: list[int], parts: Sequence[Part], last_only: bool = False) -> Tensor:
        """One forward pass: logits [T, V] of T ids, or of the last one of each part."""
        batch = torch.tensor([ids], device=self.cache.device)
        logits: Tensor = self.decoder(batch, self.cache, parts, last=1 if last_only else None)[0]
        return logits

    def close(self) -> None:
        """Gives all rooms back."""
        for room in list(self.cache.rooms):
            self.cache.close(room)
        self.rooms = []
