"""Logits to a token: the processors of a request, then the most likely token or a draw."""

from __future__ import annotations

import math
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


def check_finite(logits: Tensor) -> None:
    """Raises LockstepError unless the best of logits [V] is a number."""
    best = int(logits.argmax())  # a NaN comes before every number
    if not logits[best].isfinite():
        raise LockstepError(
            f"the model's logits are not finite (token {best} has {float(logits[best])}); "
            "its weights are damaged, or too large for the dtype: try float32"
        )


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

    def scores(self, logits: Tensor, history: History) -> Tensor:
        """What a token is chosen from, [V]: the logits after all that the request does to them."""
        check_finite(logits)
        if self.guide is not None:  # before tokens are forced, which nothing forbids
            logits = logits.masked_fill(~self.guide.mask().to(logits.device), -torch.inf)
        if self.params.penalises:
            logits = penalised(logits, self.params, history)
        best = float(logits.max())
        if best == -math.inf:
            raise RequestError(
                "no token is left to choose: bad words, biases, repeats or what the answer must look "
                "like forbid all of them; ask for fewer of these"
            )
        if not math.isfinite(best):
            raise RequestError(
                "biases and penalties take a logit beyond the largest number; ask for smaller ones"
            )
        return (
            logits if self.params.temperature == 0 else narrowed(logits.cpu().double(), self.params)
        )

    def choose(self, scores: Tensor) -> int:
        """The most likely token, the first of equals, or one that is drawn."""
        if self.params.temperature == 0:
            return int(scores.argmax())
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self.generator))
