"""Logits to a token: the processors of a request, then the most likely token or a draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import LockstepError, RequestError
from engine.generate.params import SamplingParams
from engine.generate.processors import NO_HISTORY, History, narrowed, penalised


class Guide(Protocol):
    """What an answer has to look like, followed token by token."""

    @property
    def done(self) -> bool:
        """Whether nothing can follow."""

    def mask(self) -> Tensor:
        """Which tokens may come next, bool [V] on the CPU."""

    def push(self, token: int) -> None:
        """That one came."""


@dataclass(frozen=True)
class Best:
    """The most likely token, the first of equals, and its logit; a NaN comes before every number."""

    token: int
    logit: float


def best_of(logits: Tensor) -> Best:
    """The best of logits [V]: whoever waits for a device waits once, for both of its numbers."""
    logit, token = logits.max(dim=-1)
    value, place = torch.stack((logit.double(), token.double())).tolist()
    return Best(int(place), value)


def finite_best(logits: Tensor) -> Best:
    """As `best_of`; LockstepError unless it is a number."""
    best = best_of(logits)
    if not math.isfinite(best.logit):
        raise LockstepError(
            f"the model's logits are not finite (token {best.token} has {best.logit}); "
            "its weights are damaged, or too large for the dtype: try float32"
        )
    return best


@dataclass(frozen=True)
class Scores:
    """What a token is chosen from, [V]: the logits after all that the request does to them; and the best."""

    values: Tensor
    best: int


class Sampler:
    """Chooses one token after another from logits [V], by one request's parameters and own seed."""

    def __init__(self, params: SamplingParams, guide: Guide | None = None) -> None:
        self.params, self.guide = params, guide
        self.generator = torch.Generator("cpu")
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)

    def __call__(self, logits: Tensor, history: History = NO_HISTORY) -> int:
        """The next token; LockstepError where the model's logits are not finite, or all are banned."""
        return self.choose(self.scores(logits, history))

    def scores(self, logits: Tensor, history: History) -> Scores:
        """What becomes of logits [V]."""
        if self.params.penalises or self.params.temperature > 0:
            logits = logits.cpu()  # where all that follows happens
        best = finite_best(logits)
        if self.guide is not None:  # before tokens are forced, which nothing forbids
            logits = logits.masked_fill(~self.guide.mask().to(logits.device), -torch.inf)
        if self.params.penalises:
            logits = penalised(logits, self.params, history)
        if self.guide is not None or self.params.penalises:
            best = best_of(logits)
        if best.logit == -math.inf:
            raise RequestError(
                "no token is left to choose: bad words, biases, repeats or what the answer must look "
                "like forbid all of them; ask for fewer of these"
            )
        if not math.isfinite(best.logit):
            raise RequestError(
                "biases and penalties take a logit beyond the largest number; ask for smaller ones"
            )
        if self.params.temperature > 0:
            logits = narrowed(logits.double(), self.params)
        return Scores(logits, best.token)

    def choose(self, scores: Scores) -> int:
        """The most likely token, the first of equals, or one that is drawn."""
        if self.params.temperature == 0:
            return scores.best
        return int(torch.multinomial(scores.values.softmax(-1), 1, generator=self.generator))
