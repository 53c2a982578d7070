"""Public cases of the theme cache that concern blocks: C06 (their reuse), C10 (prompts that were evicted).

Both are properties: whatever a cache has served before, its logits are those of a pass without one. All
free blocks hold NaN here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.cache import PagedCache, Part
from engine.decoder import Decoder
from tests.engine import tiny
from tests.engine.paging import naive, run, served
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

CLOSE = 1e-5  # the cases' own tolerance
A = [i * 7 % 50 for i in range(60)]
B = [*A[:3], 9, 9, 9, 9, 9]


@pytest.fixture(scope="module")
def model() -> Decoder:
    config = {**tiny.CASE, "max_position_embeddings": 128}
    return tiny.decoder(config, draw=tiny.case_draw(0.2))


def answered(
    model: Decoder, cache: PagedCache, prompt: Sequence[int], n: int
) -> tuple[list[int], Tensor]:
    """The prompt with `n` greedy tokens behind it, and the logits that those were taken from."""
    ids, rows = list(prompt), []
    room = cache.admit(ids, len(ids))
    for _ in range(n):
        rows.append(run(model, cache, room, ids)[-1])
        ids.append(int(rows[-1].argmax()))
    cache.close(room)
    return ids, torch.stack(rows)


# -- C06: nothing of an earlier request is left ----------------------------------------------------


@pytest.mark.parametrize(("blocks", "hits"), [(40, 3 + 59), (5, 3 + 48)])  # A takes five of 16
def test_c06_blocks_of_an_earlier_request_leave_nothing(
    model: Decoder, blocks: int, hits: int
) -> None:
    cache = PagedCache(model.spec, blocks, poison=True)
    for prompt in (A, B, A):
        ids, logits = answered(model, cache, prompt, 20)
        cold = naive(model, ids[:-1])[len(prompt) - 1 :]
        assert (logits - cold).abs().max() <= CLOSE
    assert cache.hits == hits


def test_c06_nor_do_those_of_one_that_was_given_up(model: Decoder) -> None:
    """Given up before its tokens were written: its blocks are not taken for what they were to hold."""
    cache = PagedCache(model.spec, 6, poison=True)
    room = cache.admit(A, len(A))
    run(model, cache, room, A[:20])
    cache.extend([Part(room, 30)])  # the pass that was given up
    cache.close(room)
    for prompt in (B, A):
        ids, logits = answered(model, cache, prompt, 20)
        assert (logits - naive(model, ids[:-1])[len(prompt) - 1 :]).abs().max() <= CLOSE
    assert cache.hits == 3 + 20


# -- C10: an evicted block is nobody's -------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 4])
def test_c10_a_prompt_that_was_evicted_is_computed_again(window: int | None) -> None:
    """B and C take A's blocks in a pool of 6, and hold other keys in them when A comes again."""
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    config = {**tiny.CASE, **mistral, "sliding_window": window}
    model = tiny.decoder(config, draw=tiny.case_draw(0.2))
    cache = PagedCache(model.spec, 6, 4, poison=True)
    a, b, c = ([(i * 7 + first) % 50 for i in range(12)] for first in (0, 1, 2))
    for prompt in (a, b, c):
        assert (served(model, cache, prompt) - naive(model, prompt)).abs().max() <= CLOSE
    assert (cache.hits, cache.evictions) == (0, 3)
    logits = served(model, cache, a)
    assert cache.hits == 0, "an evicted block is not hit"
    assert (logits - naive(model, a)).abs().max() <= CLOSE
    known = [*c[:8], 48, 49]
    assert len(served(model, cache, known)) == 2, "those that are held are"
