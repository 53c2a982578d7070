"""An error is heard by those whose it is; the others are served on."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.errors import LockstepError, RequestError
from tests.engine.service.sharing import (
    ASKED,
    PROMPTS,
    Said,
    collected,
    is_empty,
    said,
)


def nothing_allowed(engine: Engine) -> SamplingParams:
    bias = dict.fromkeys(range(engine.spec.vocab_size), -math.inf)
    return SamplingParams(max_tokens=4, logit_bias=bias)


def test_an_error_of_one_request_is_its_own_caller_s(shared: Engine, alone: list[Said]) -> None:
    """All tokens are forbidden to it; the neighbours never hear of it."""
    forbidden = nothing_allowed(shared)
    good, bad = shared.stream(*ASKED[0]), shared.stream(PROMPTS[1], forbidden)
    pieces = [next(good)]
    with pytest.raises(RequestError, match="no token is left to choose"):
        next(bad)
    assert next(bad, None) is None
    assert said([*pieces, *good]) == alone[0]


def test_an_error_of_one_coroutine_is_its_own(shared: Engine, alone: list[Said]) -> None:
    forbidden = nothing_allowed(shared)

    async def ask() -> list[Any]:
        good = collected(shared.astream(*ASKED[0]))
        bad = shared.agenerate(PROMPTS[1], forbidden)
        return await asyncio.gather(good, bad, return_exceptions=True)

    good, bad = asyncio.run(ask())
    assert isinstance(bad, RequestError)
    assert said(good) == alone[0]


def test_a_request_that_the_cache_cannot_hold_is_refused_at_the_call(shared: Engine) -> None:
    long = SamplingParams(max_tokens=40)
    with pytest.raises(RequestError, match=r"may have 44 tokens.* room for 32"):
        shared.stream([1] * 5, long)
    with pytest.raises(RequestError, match=r"may have 44 tokens.* room for 32"):
        shared.astream([1] * 5, long)
    with pytest.raises(RequestError, match="best_of above n cannot be streamed"):
        shared.astream([1], SamplingParams(best_of=2))
    assert shared.generate([1], ASKED[0][1]).token_ids


def test_a_pass_that_fails_ends_those_that_took_part_and_the_next_ones_are_served(
    shared: Engine, alone: list[Said]
) -> None:
    """What they had computed is worth nothing; a fault of the machine is no reason to stop serving."""
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    for stream in streams:
        next(stream)

    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    handle = shared.decoder.final_norm.register_forward_hook(fail)
    try:
        with pytest.raises(MemoryError, match="no more"):
            list(streams[0])
    finally:
        handle.remove()
    with pytest.raises(MemoryError, match="no more"):
        list(streams[1])
    is_empty(shared)
    assert said(list(shared.stream(*ASKED[0]))) == alone[0]


def test_an_interrupted_pass_interrupts_its_caller_and_fails_the_others(shared: Engine) -> None:
    streams = [shared.stream(*asked) for asked in ASKED[:2]]
    for stream in streams:
        next(stream)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = shared.decoder.final_norm.register_forward_hook(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(streams[0])
    finally:
        handle.remove()
    with pytest.raises(LockstepError, match="interrupted"):
        list(streams[1])
