"""What an engine must offer to be judged: one `step`, which shows its values to a tap.

Nothing here knows a particular engine. An engine of another project subclasses Candidate, says its
level, and calls the tap with what it has; what it cannot offer is reported as skipped, by name.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

from engine.errors import LockstepError, RequestError


class Level(IntEnum):
    """How deep a candidate can be looked into; each level includes those before it."""

    L0 = 0  # text: `text` continues a prompt
    L1 = 1  # ids: the probe `next_id` [B, 1], the most likely token after each step
    L2 = 2  # logprobs: the probe `logprobs` [B, T, V]
    L3 = 3  # logits: the probe `logits`
    L4 = 4  # probes: every operation of the decoder
    L5 = 5  # cache: `cache.layers.{i}.k` and `.v`

    def offers(self, probe: str) -> bool:
        """Whether a candidate of this level shows `probe`."""
        return self >= level_of(probe)

    @property
    def shows(self) -> str:
        """What a candidate of this level shows beyond the level before it."""
        return ("text", "ids", "log probabilities", "logits", "operations", "cache")[self]

    @property
    def stands_for_all(self) -> str | None:
        """The one probe that a candidate below L3 shows instead of logits and operations."""
        return {Level.L1: "next_id", Level.L2: "logprobs"}.get(self)


@cache
def level_of(probe: str) -> Level:
    """The lowest level at which a probe is shown."""
    if probe.startswith("cache."):
        return Level.L5
    return {"next_id": Level.L1, "logprobs": Level.L2, "logits": Level.L3}.get(probe, Level.L4)


_LAYER = re.compile(r"(cache\.)?layers\.(\d+)\.")


def operation(probe: str) -> str:
    """A probe's name without the layer's number: `attn.q_rope`, `cache.k`, `logits`."""
    return _LAYER.sub(r"\1", probe)


def layer_of(probe: str) -> int | None:
    """The layer that a probe belongs to, of the decoder or of the cache."""
    found = _LAYER.match(probe)
    return int(found[2]) if found else None


def over_keys(probe: str) -> bool:
    """Whether a probe's rows are all keys in view, those of earlier steps included, not a step's tokens."""
    return probe.startswith("cache.") or probe.endswith(".attn.kv_up")


class Tap(Protocol):
    """Called with each probe's name and value as it appears, in order.

    Values keep a leading batch axis: [B, T, dim], [B, heads, T, D], scores and weights
    [B, H, T, S], the cache [B, K, S, D] with all keys so far, as `attn.kv_up` is; ids of experts are
    whole numbers. The candidate must go on with the tensor that is returned; a candidate below L4 may
    drop it.
    """

    def __call__(self, probe: str, value: Tensor) -> Tensor: ...


class UnavailableError(LockstepError):
    """A candidate cannot be asked, as its server is away: nothing is known of it, good or bad."""


@dataclass(frozen=True)
class Location:
    """Where in the candidate's own code an operation stands."""

    file: str
    line: int


class Candidate:
    """An engine under test, holding one model with its weights.

    Subclasses implement `begin` and `step`, and `level` says what `step` shows; an engine of level L0
    implements `text` alone. `encode`, `greedy` and `text` show its own loop at work.
    """

    name: str = "candidate"
    level: Level = Level.L3
    #: Patterns of probes that this candidate has no place for, although its level has.
    lacks: tuple[str, ...] = ()
    #: Whether NaN in what it shows means that it does not know: a server tells the best few alone.
    partial: bool = False
    #: How far its cache rounds a number, relative to the largest of the row: half a step where it is
    #: quantised. What follows starts from the reference's keys and values then, in every run.
    cache_rounding: float = 0.0
    #: How prompts are fed to it: a trial for each size of chunk, None being the whole prompt at once.
    prefill: tuple[int | None, ...] = (None, 5)

    def begin(self, capacity: int) -> None:
        """Forgets everything and makes an empty cache for `capacity` tokens."""
        raise NotImplementedError

    def step(self, ids: Tensor, tap: Tap) -> None:
        """Feeds the next tokens (int64 [T], on the CPU) and shows every value it can to `tap`."""
        raise NotImplementedError

    def locate(self, probe: str) -> Location | None:
        """The place of a probe's operation in the candidate's code, where it knows it."""
        return None

    def encode(self, text: str) -> list[int] | None:
        """A prompt's ids, special tokens included; None without a tokenizer."""
        return None

    def greedy(self, ids: list[int], max_tokens: int) -> list[int] | None:
        """Exactly `max_tokens` tokens by the candidate's own loop, past any end token; None without one."""
        return None

    def text(self, prompt: str, max_tokens: int) -> str | None:
        """The greedy continuation of `prompt` up to its end token, without that; None without text."""
        return None

    def beyond(self, level: Level) -> str | None:
        """What was asked for up to `level` and is not in this candidate, in words."""
        missing = [deeper.shows for deeper in Level if self.level < deeper <= level]
        return (
            f"{self.name} is of level {self.level.name}: no {', '.join(missing)}"
            if missing
            else None
        )

    def offers(self, probe: str) -> bool:
        return self.level.offers(probe) and not any(fnmatch(probe, p) for p in self.lacks)


class NotOfferedError(LockstepError):
    """What is asked for is no part of an engine: skipped by this reason, and nothing that went wrong."""


class Factory(Protocol):
    """Makes the candidates that are to be judged on one model: usually one, or one per kernel.

    `model` is a folder in Hugging Face layout or a .gguf file, `device` a torch device, `dtype` a
    dtype's name. Raises a LockstepError for what the engine does not support, NotOfferedError where it
    does not mean to.
    """

    def __call__(self, model: Path, device: str, dtype: str) -> Sequence[Candidate]: ...


def factory(name: str) -> Factory:
    """The factory called `module:function`, imported; RequestError if there is none."""
    module, _, function = name.partition(":")
    if not (module and function):
        raise RequestError(f"a candidate is named module:function, not {name!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the script `lockstep` has its own folder there instead
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # a module of the user's own raises what it likes
        raise RequestError(f"the candidate {name} cannot be imported: {said(error)}") from None
    return cast("Factory", found)


def made(make: Factory, model: Path, device: str, dtype: str) -> Sequence[Candidate]:
    """What a factory makes of a model; LockstepError where it raises, or makes no candidate."""
    name = getattr(make, "__qualname__", repr(make))
    try:
        found = list(make(model, device, dtype))
    except LockstepError:
        raise
    except (Exception, SystemExit) as error:
        raise LockstepError(f"{name} made no candidate of {model}: {said(error)}") from error
    if not found or not all(isinstance(each, Candidate) for each in found):
        raise LockstepError(f"{name} must give Candidates in a list, not {found!r}")
    for each in found:
        if not isinstance(each.level, Level):
            raise LockstepError(f"{each.name} has the level {each.level!r}; it must be a Level")
        sizes = [1 if size is None else size for size in each.prefill]
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise LockstepError(
                f"{each.name} has the prefill {each.prefill!r}; it must hold None or sizes from 1 up"
            )
    return found


def said(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
