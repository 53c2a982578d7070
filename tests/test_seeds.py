"""A seed is a request's own: the same request draws the same alone, among eight others and after twenty.

To the bit where the engine is batch-invariant. In ordinary float32 the numbers of a shared pass may be
rounded otherwise: a token that differs must then be a tie, where noise of that size makes it either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import Engine, SamplingParams
from engine.generate.sample import Sampler
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

ASKED = SamplingParams(max_tokens=8, temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
PROMPT = [3, 7, 11, 2, 9]
OTHERS = [[(7 * i + j) % 50 for j in range(1 + 3 * i % 11)] for i in range(8)]


def answers(engine: Engine) -> list[list[int]]:
    """The request's tokens alone, among eight others that draw, too, and after twenty."""
    other = replace(ASKED, seed=None)
    alone = engine.generate(PROMPT, ASKED).token_ids
    streams = [engine.stream(prompt, other) for prompt in OTHERS]
    if engine.cache == "paged":
        mine = engine.stream(PROMPT, ASKED)
        rounds = zip(mine, *streams, strict=True)
        among = [token for mine, *_ in rounds for token in mine.token_ids]
    else:  # each call has a cache of its own there: one call for all, with one set of parameters
        among = engine.generate([*OTHERS[:4], PROMPT, *OTHERS[4:]], ASKED)[4].token_ids
    for i in range(20):
        engine.generate(OTHERS[i % 8], replace(other, max_tokens=1))
    return [alone, among, engine.generate(PROMPT, ASKED).token_ids]


@pytest.mark.parametrize("cache", ["ring", "contiguous", "paged"])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_seeded_request_of_a_tiny_model_draws_the_same(
    tmp_path: Path, cache: str, batch_invariant: bool
) -> None:
    folder = tiny.save_folder(tmp_path, tiny.CASE)
    engine = Engine.load(folder, cache=cache, batch_invariant=batch_invariant)
    alone, *rest = answers(engine)
    assert rest == [alone, alone]
    assert len(set(alone)) > 3, "it draws"


@pytest.mark.xdist_group("smollm2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_seeded_request_of_a_real_model_draws_the_same(
    asset: Callable[[str], Path], batch_invariant: bool
) -> None:
    engine = Engine.load(asset("smollm2-135m"), cache="paged", batch_invariant=batch_invariant)
    alone, *rest = answers(engine)
    for other in rest:
        assert other == alone or (not batch_invariant and is_tie(engine, alone, other))


def test_unseeded_requests_differ(tmp_path: Path) -> None:
    """From each other in a batch, and from one time to the next."""
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE))
    unseeded = replace(ASKED, seed=None)
    drawn = [done.token_ids for done in engine.generate([PROMPT] * 4, unseeded)]
    drawn += [engine.generate(PROMPT, unseeded).token_ids for _ in range(4)]
    assert len({tuple(ids) for ids in drawn}) == 8


# -- ties ------------------------------------------------------------------------------------------


def is_tie(engine: Engine, one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether noise of a shared pass's size makes the first token that differs either of the two."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    ids = [*PROMPT, *one[:at]]
    whole = engine.logits(ids)
    noise = float((whole - engine.logits(ids, chunk=1)).abs().max())
    return {one[at], other[at]} <= within(whole[-1], at, 3 * noise, (one[at], other[at]))


def within(logits: Tensor, drawn: int, noise: float, tokens: Sequence[int]) -> set[int]:
    """What is drawn after so many draws from these logits, with any of the tokens raised by the noise."""
    found = set()
    for raised in tokens:
        sampler = Sampler(ASKED)
        for _ in range(drawn):
            sampler(logits)
        moved = logits.index_add(0, torch.tensor([raised]), torch.tensor([noise]))
        found.add(sampler(moved))
    return found


def test_what_noise_decides_is_a_tie_and_what_it_does_not_is_none() -> None:
    logits = torch.zeros(50).index_fill(0, torch.tensor([4, 9]), 3.0)
    drawn = {Sampler(ASKED)(logits)}
    assert within(logits, 0, 0.0, (4, 9)) == drawn
    assert within(logits, 0, 1e-3, (4, 9)) == drawn
    assert within(logits, 0, 30.0, (4, 9)) == {4, 9}
