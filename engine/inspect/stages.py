"""Where the time of a text's path goes: every second is counted in one stage, the innermost that is open.

So the stages of a run add up to it, but for what lies between them, which is said.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.cache import Cache
from engine.decoder import Decoder
from engine.generate.engine import Engine
from engine.generate.processors import History
from engine.generate.prompts import Prompt
from engine.generate.request import Request
from engine.generate.sample import Sampler
from engine.inspect.numbers import short
from engine.inspect.operations import place
from engine.inspect.twin import told
from engine.probe import Probe

PHASES = ("prompt", "steps")

#: In the order of the path.
STAGES = (
    "tokenize",
    "plan",
    "embedding",
    "norms",
    "attention",
    "cache",
    "feed-forward",
    "residual sums",
    "LM head",
    "sampling",
    "detokenize",
)

EXPLAINED = {
    "tokenize": "text to ids; words that were seen before are looked up",
    "plan": "a place in the cache, positions, masks, tables of angles",
    "embedding": "a row of the table for each id",
    "norms": "before and behind attention and feed-forward, and the last one",
    "attention": "projections, rotation, scores, softmax, weighted sum, projection",
    "cache": "keys and values written, and read back with the past",
    "feed-forward": "widened, activated, narrowed",
    "residual sums": "what each half of a layer adds to the stream",
    "LM head": "a score of every token of the vocabulary",
    "sampling": "one of them is chosen",
    "detokenize": "ids to text, never half a character",
}


#: The paths of modules that are stages: what lies within them is a part of theirs.
_STAGED = re.compile(r"embed|final_norm|logits|layers\.\d+(\.\w+)?")


def stage_of(path: str) -> str:
    """The stage of a module by its path, as `told` gives it."""
    layer, inner = place(path)
    part = inner.partition(".")[0]
    if part == "cache":
        return "cache"
    if part.endswith("norm"):
        return "norms"
    named = {"embed": "embedding", "logits": "LM head", "attn": "attention", "mlp": "feed-forward"}
    return named.get(part, "plan" if layer is None else "residual sums")


class Clock:
    """Seconds of each stage and phase ("prompt", or "steps"), and of each layer's stages.

    A stage that begins within another one stops the other's clock until it ends.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.layers: dict[tuple[str, int, str], float] = defaultdict(float)
        self.phase = "prompt"
        self._device = device
        self._open: list[tuple[int | None, str]] = []
        self._since = 0.0

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _switch(self) -> None:
        """Charges the time since the last switch to the stage that is open."""
        now = self.now()
        if self._open:
            layer, stage = self._open[-1]
            self.seconds[self.phase, stage] += now - self._since
            if layer is not None:
                self.layers[self.phase, layer, stage] += now - self._since
        self._since = now

    def begin(self, path: str, module: nn.Module | None = None) -> None:
        self._switch()
        self._open.append((place(path)[0], stage_of(path)))

    def end(self, path: str, module: nn.Module | None = None) -> None:
        self._switch()
        self._open.pop()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """For what is no module."""
        self._switch()
        self._open.append((None, name))
        yield
        self._switch()
        self._open.pop()


def timed(
    engine: Engine,
    decoder: Decoder,
    prompt: Prompt,
    request: Request,
    answer: int,
    parse_special: bool = False,
) -> Measured:
    """One run of the whole path, from text to text, on `decoder`: a request's first `answer` tokens."""
    clock = Clock(engine.device)
    with told(clock, stages_of(decoder)):
        start = clock.now()
        with clock.stage("tokenize"):
            ids = engine.encode(prompt, parse_special)
        with clock.stage("plan"):
            cache = engine.new_cache(len(ids) + answer, 1, engine.step_tokens)
        text = engine.tokenizer.stream(True, after=ids) if engine.has_tokenizer else None
        sampler, tokens = Sampler(request.params), list[int]()
        with told(clock, caches_of(cache)):
            with clock.stage("plan"):
                logits = prefill(decoder, ids, cache, engine.step_tokens)
            while True:
                with clock.stage("sampling"):
                    seen = History(ids, tokens, request.ends, request.limit)
                    tokens.append(sampler(logits, seen))
                with clock.stage("detokenize"):
                    if text is not None:
                        text.push(tokens[-1])
                if len(tokens) == answer:
                    break
                clock.phase = "steps"
                with clock.stage("plan"):
                    ids_of_step = torch.tensor([tokens[-1:]], device=engine.device)
                    logits = decoder(ids_of_step, cache)[0, -1]
    return Measured(clock.now() - start, clock, answer)


def prefill(decoder: Decoder, ids: list[int], cache: Cache, longest: int) -> Tensor:
    """Reads a prompt in chunks, as the engine does; the last position's logits [V]."""
    batch = torch.tensor([ids], device=cache.device)
    for chunk in batch.split(longest, dim=1):
        logits = decoder(chunk, cache, last=1, read_as=len(ids))
    last: Tensor = logits[0, -1]
    return last


def stages_of(decoder: Decoder) -> Iterator[tuple[str, nn.Module]]:
    """The modules whose calls are stages, by their paths."""
    yield "", decoder
    for path, module in decoder.named_modules():
        plain = type(module) is Probe or isinstance(module, nn.Identity)
        if _STAGED.fullmatch(path) and not plain:
            yield path, module


def caches_of(cache: Cache) -> Iterator[tuple[str, nn.Module]]:
    """The same of a cache."""
    for number, layer in enumerate(cache.layers):
        yield f"cache.layers.{number}", layer


@dataclass(frozen=True)
class Measured:
    """Seconds of a whole run, and what its clock says of the stages; the answer had so many tokens."""

    whole: float
    clock: Clock
    answer: int

    def document(
        self, tensors: Mapping[str, int], weights: Mapping[str, int], layers: int
    ) -> dict[str, Any]:
        """Stages in order: seconds of the prompt's pass and of the mean step, and their bytes."""
        steps = max(self.answer - 1, 1)
        seconds = self.clock.seconds
        rows = [
            {
                "stage": stage,
                "explained": EXPLAINED[stage],
                "prompt": short(seconds["prompt", stage], 4),
                "step": short(seconds["steps", stage] / steps, 4),
                "share": short(sum(seconds[phase, stage] for phase in PHASES) / self.whole, 4),
                "tensors": tensors.get(stage),
                "weights": weights.get(stage),
            }
            for stage in STAGES
        ]
        return {
            "whole": short(self.whole, 4),
            "steps": self.answer - 1,
            "accounted": short(sum(seconds.values()) / self.whole, 4),
            "rows": rows,
            "layers": {
                phase: {
                    stage: [
                        short(self.clock.layers[phase, layer, stage], 3) for layer in range(layers)
                    ]
                    for stage in ("attention", "cache", "feed-forward", "norms")
                }
                for phase in PHASES
            },
        }
