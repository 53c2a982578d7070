"""What a caller may ask of a generation, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from engine.errors import RequestError

MOST_ANSWERS = 1024  # to one prompt


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop; raises RequestError for what makes no sense.

    `temperature` 0 takes the most likely token (the lowest id on ties). Above 0, logits are divided
    by it, then cut to the `top_k` largest (and all that equal the last of them), the nucleus of
    mass `top_p`, and the tokens at least `min_p` times as likely as the best; None leaves a cut
    out, and so do 0 and -1 for `top_k`. A `seed` makes the draw repeatable.
    `stop` strings are not part of the text unless `include_stop_str_in_output` asks for it;
    `stop_token_ids` add to the model's own end tokens, which `ignore_eos` switches off.
    `logprobs` n records the chosen token's log-probability and the n most likely ones', of the model's
    own distribution, before temperature and cuts; `prompt_logprobs` n does so for the prompt's tokens.
    `n` answers are drawn to one prompt; the one of index i has the seed of `branch(i)`.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    n: int = 1
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _items("stop", self.stop)
        for text in stop:
            _require(isinstance(text, str), f"a stop string must be a string, got {text!r:.60}")
            _require(text != "", "a stop string must not be empty")
        stop_token_ids = _items("stop_token_ids", self.stop_token_ids)
        for token in stop_token_ids:
            _integer("a stop token id", token, least=0)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)

        _integer("max_tokens", self.max_tokens, least=1)
        _number("temperature", self.temperature, "0 or more", lambda t: 0 <= t < math.inf)
        if self.top_k is not None:
            _integer("top_k", self.top_k, least=-1)
            object.__setattr__(self, "top_k", self.top_k if self.top_k > 0 else None)
        if self.top_p is not None:
            _number("top_p", self.top_p, "above 0 and at most 1", lambda p: 0 < p <= 1)
        if self.min_p is not None:
            _number("min_p", self.min_p, "between 0 and 1", lambda p: 0 <= p <= 1)
        if self.seed is not None:
            _integer("seed", self.seed, least=0)
            _require(self.seed < 2**63, f"seed must be below 2^63, got {self.seed!r:.60}")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _integer(name, count, least=0)
        _integer("n", self.n, least=1)
        _require(self.n <= MOST_ANSWERS, f"n must be at most {MOST_ANSWERS}, got {self.n!r:.60}")
        _boolean("ignore_eos", self.ignore_eos)
        _boolean("include_stop_str_in_output", self.include_stop_str_in_output)

    def branch(self, index: int) -> SamplingParams:
        """What the answer of that index would be asked with alone: its seed is seed + index, modulo 2^63."""
        seed = None if self.seed is None else (self.seed + index) % 2**63
        return replace(self, n=1, seed=seed)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)


def _items(name: str, value: Any) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        raise RequestError(f"{name} must be a list, got {value!r:.60}") from None


def _integer(name: str, value: Any, least: int) -> None:
    # Python counts True as 1; whoever writes it means something else.
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    _require(
        whole and value >= least,
        f"{name} must be a whole number of at least {least}, got {value!r:.60}",
    )


def _boolean(name: str, value: Any) -> None:
    _require(isinstance(value, bool), f"{name} must be true or false, got {value!r:.60}")


def _number(name: str, value: Any, range_: str, fits: Callable[[Any], bool]) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    _require(real and fits(value), f"{name} must be a number {range_}, got {value!r:.60}")
