"""What a worker is asked, and the clock: the same for this engine and for its rivals.

A subject computes; here it is said what is timed of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch

from conformance.bench.clock import now, seconds
from conformance.bench.memory import Peak
from conformance.bench.stages import StageFigures
from conformance.bench.worker import Questions

Ids = list[int]
TICK = 1e-6  # seconds: nothing takes less


class Subject(Protocol):
    """A loaded model that answers greedily; end tokens end nothing."""

    device: torch.device

    def load(self) -> None:
        """Loads the model anew, as at the start."""

    def answer(self, prompts: Sequence[Ids], n: int) -> list[Ids]:
        """The `n` tokens after each of the prompts, which are of one length and answered together."""

    def stream(self, prompt: Ids, n: int, came: Callable[[], None]) -> None:
        """Answers one prompt with `n` tokens and calls `came` after each of them."""

    def read(self, prompt: Ids) -> int:
        """The likeliest token after the prompt: a prefill, with logits of the last position alone."""

    def speak(self, text: str) -> str:
        """The first piece of text after a text, tokenizer and all."""

    def stages(self, text: str) -> dict[str, StageFigures]:
        """The path of a text once, stage by stage."""

    def about(self) -> dict[str, Any]:
        """What there is to know of it: versions, and `weights`, the bytes that a step reads."""


class Timed:
    """Answers a parent's questions about one subject."""

    def __init__(self, make: Callable[[], Subject], device: torch.device) -> None:
        self.device = device
        self.peak = Peak(device)
        self.before = self.peak.bytes()  # the interpreter and its libraries
        start = now(device)
        self.subject = make()
        self.loaded = now(device) - start

    @property
    def questions(self) -> Questions:
        return {
            "start": self.start,
            "decode": self.decode,
            "prefill": self.prefill,
            "first": self.first,
            "load": self.load,
            "memory": self.memory,
            "growth": self.growth,
            "stages": self.stages,
        }

    def _seconds(self, call: Callable[[], object]) -> float:
        return seconds(call, self.device)

    def start(self, prompt: Ids) -> dict[str, Any]:
        """From nothing to the second token: loading, then a first answer, compiling where that is due."""
        first = self._seconds(lambda: self.subject.answer([prompt], 2))
        return {**self.subject.about(), "loaded": self.loaded, "first_answer": first}

    def decode(self, prompts: list[Ids], n: int) -> dict[str, Any]:
        """Seconds of n steps: what answers of n + 1 tokens take longer than answers of one."""
        ids: list[Ids] = []
        one = self._seconds(lambda: self.subject.answer(prompts, 1))
        all_ = self._seconds(lambda: ids.extend(self.subject.answer(prompts, n + 1)))
        return {"seconds": max(all_ - one, TICK), "ids": ids}

    def prefill(self, prompt: Ids) -> dict[str, Any]:
        ids: Ids = []
        seconds = self._seconds(lambda: ids.append(self.subject.read(prompt)))
        return {"seconds": seconds, "ids": [ids]}

    def first(self, text: str) -> dict[str, Any]:
        return {"seconds": self._seconds(lambda: self.subject.speak(text))}

    def load(self) -> dict[str, Any]:
        return {"seconds": self._seconds(self.subject.load)}

    def memory(self, prompt: Ids, n: int) -> dict[str, Any]:
        """Bytes at most: of the process so far, a first such answer included, and during another one."""
        self.subject.answer([prompt], n)
        so_far = self.peak.bytes()
        self.peak.reset()
        self.subject.answer([prompt], n)
        return {"before": self.before, "start": so_far, "answer": self.peak.bytes()}

    def growth(self, prompt: Ids, n: int) -> dict[str, Any]:
        """Seconds until the first token, and those between it and each of the next n."""
        times = [now(self.device)]
        self.subject.stream(prompt, n + 1, lambda: times.append(now(self.device)))
        gaps = [after - before for before, after in pairwise(times)]
        return {"first": gaps[0], "steps": gaps[1:]}

    def stages(self, text: str) -> dict[str, Any]:
        return {name: figures.to_json() for name, figures in self.subject.stages(text).items()}
