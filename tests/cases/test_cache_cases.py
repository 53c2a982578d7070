"""Public cases of the theme cache: C01 (paged; `test_engine_cases` has rows), C03, C10 (a ring that wrapped)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.cache import Cache, ContiguousCache, PagedCache, Part, RingCache
from engine.decoder import Decoder
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

WINDOW = 4
IDS = list(tiny.CASE_IDS)


@pytest.fixture(scope="module")
def llama() -> Decoder:
    return tiny.decoder(tiny.CASE, draw=tiny.case_draw(0.2))


@pytest.fixture(scope="module")
def mistral() -> Decoder:
    """The same with a window in every layer."""
    config = {**tiny.CASE, "model_type": "mistral", "sliding_window": WINDOW}
    config["architectures"] = ["MistralForCausalLM"]
    return tiny.decoder(config, draw=tiny.case_draw(0.2))


@torch.inference_mode()
def fed(model: Decoder, cache: Cache, ids: Sequence[int], steps: Sequence[int]) -> Tensor:
    """The logits [T, V] of a sequence that comes in these steps, in a room of its own."""
    room = cache.open()
    chunks = torch.tensor([list(ids)]).split(list(steps), dim=1)
    rows = [model(chunk, cache, [Part(room, chunk.shape[1])])[0] for chunk in chunks]
    cache.close(room)
    return torch.cat(rows)


def one_shot(model: Decoder, ids: Sequence[int]) -> Tensor:
    return fed(model, ContiguousCache(model.spec, len(ids)), ids, [len(ids)])


@pytest.mark.parametrize("chunk", [1, 3, 7, 23])
def test_c01_chunks_in_blocks_equal_one_shot(llama: Decoder, chunk: int) -> None:
    n = len(IDS)
    cache = PagedCache(llama.spec, 6, 4, poison=True)
    steps = [chunk] * (n // chunk) + [n % chunk] * (n % chunk > 0)
    assert (fed(llama, cache, IDS, steps) - one_shot(llama, IDS)).abs().max() <= 1e-5


@pytest.mark.parametrize("first", [1, WINDOW, WINDOW + 1])
def test_c03_a_ring_is_right_before_it_fills_and_after(mistral: Decoder, first: int) -> None:
    """Token by token through the lengths W-1, W, W+1, 2W and 2W+1, or filled by W or W+1 tokens first."""
    cache = RingCache(mistral.spec, len(IDS), longest_pass=first)
    got = fed(mistral, cache, IDS, [first] + [1] * (len(IDS) - first))
    assert len(got) > 2 * WINDOW + 1
    assert (got - one_shot(mistral, IDS)).abs().max() <= 1e-5


@pytest.mark.parametrize("paged", [False, True])
def test_c10_a_prompt_that_begins_as_one_before_a_ring_wrapped(
    mistral: Decoder, paged: bool
) -> None:
    """The ring no longer holds the eight tokens that they share; blocks do, and give them back."""
    before, after = IDS[:12], [*IDS[:8], 49, 2, 31, 5]
    cache: Cache = RingCache(mistral.spec, 12, longest_pass=1)
    if paged:
        cache = PagedCache(mistral.spec, 8, 4, poison=True)
    found = []
    for ids in (before, after):
        room = cache.admit(ids, len(ids))
        found.append(room.length)
        with torch.inference_mode():
            for token in ids[room.length :]:
                got = mistral(torch.tensor([[token]]), cache, [Part(room, 1)])[0, -1]
        cache.learn(room, ids)
        cache.close(room)
    assert found == [0, 8 if paged else 0]
    assert (got - one_shot(mistral, after)[-1]).abs().max() <= 1e-5
