"""Drafters for tests: one that knows nothing, one that is told everything, and engines that share a model."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from engine import Engine
from engine.generate.request import Request
from engine.generate.speculation import Drafter


class Wild:
    """Proposes tokens at random, up to `tokens` of a vocabulary of so many: nearly all of them wrong."""

    def __init__(self, vocabulary: int, tokens: int = 4) -> None:
        self.vocabulary, self.tokens = vocabulary, tokens
        self.draw = random.Random(0)

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        return {
            request: [self.draw.randrange(self.vocabulary) for _ in range(min(n, self.tokens))]
            for request, n in most.items()
        }

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


class Told:
    """Proposes what the answers are: `answers` by prompt, each whole."""

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        self.answers = answers

    def propose(self, most: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        return {
            request: self.answers[tuple(request.prompt)][len(request.pieces) :][:n]
            for request, n in most.items()
        }

    def forget(self, request: Request) -> None:
        """Nothing is kept."""


def with_drafts(engine: Engine, drafter: Drafter | None, cache: str = "ring") -> Engine:
    """The same model with a cache of that kind ("int8" is paged), and that drafter."""
    kind, dtype = ("paged", "int8") if cache == "int8" else (cache, None)
    made = Engine(engine.decoder, engine.checkpoint, "cpu", "float32", kind, None, dtype)
    if drafter is not None:
        made.drafters = lambda _: drafter
    return made
