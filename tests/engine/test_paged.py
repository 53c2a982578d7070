"""The paged cache: blocks are taken one by one, shared, copied before they are written, and given up."""

from __future__ import annotations

import math

import pytest
import torch

import engine.cache.cache as caches
from engine.backends import supports
from engine.cache import PagedCache, Part
from engine.decoder import Decoder
from engine.errors import CacheFullError, RequestError
from engine.families import read_spec
from tests.conformance.tiny_families import CONFIGS
from tests.engine import tiny
from tests.engine.paging import BLOCK, IDS, naive, paged, run, same, served


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny.decoder(tiny.CASE)


# -- the law ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager", "sdpa"])
@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_a_contiguous_cache(family: str, name: str) -> None:
    """In every family: windows, latents, experts, sinks, learned positions."""
    config = {"model_type": family, **CONFIGS[family]}
    if not supports(name, read_spec(config)[1]):
        pytest.skip(f"{name} cannot form the scores of {family}")
    model = tiny.decoder(config, name)
    whole = naive(model, IDS)
    for chunk in (1, 3, 7, BLOCK, BLOCK + 1):
        cache = paged(model, 5)
        assert same(run(model, cache, cache.open(), IDS, chunk), whole), f"chunks of {chunk}"


def test_sequences_in_one_pass_do_not_meet(model: Decoder) -> None:
    """Their blocks lie between each other's, and the longest decides how much is read of each."""
    cache = paged(model)
    rooms = [cache.open() for _ in range(3)]
    lengths = [3, 9, 5]
    prompts = [[(i * 7 + n) % 50 for i in range(n + 4)] for n in lengths]
    with torch.inference_mode():
        packed = torch.tensor([[t for p, n in zip(prompts, lengths, strict=True) for t in p[:n]]])
        parts = [Part(room, n) for room, n in zip(rooms, lengths, strict=True)]
        rows = [*model(packed, cache, parts)[0].split(lengths)]
        for step in range(4):
            batch = torch.tensor([[p[n + step] for p, n in zip(prompts, lengths, strict=True)]])
            logits = model(batch, cache, [Part(room, 1) for room in rooms])[0]
            rows = [torch.cat((a, b[None])) for a, b in zip(rows, logits, strict=True)]
    for prompt, row in zip(prompts, rows, strict=True):
        assert same(row, naive(model, prompt))


# -- blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_at_most_one_block_is_not_full(model: Decoder, length: int) -> None:
    cache = paged(model)
    by_pass, by_admission = cache.open(), cache.admit(IDS[:length], length)
    run(model, cache, by_pass, IDS[:length], 1)
    for room in (by_pass, by_admission):
        assert len(room.blocks) == math.ceil(length / BLOCK)


def test_closed_rooms_give_all_blocks_back(model: Decoder) -> None:
    cache = paged(model, 5)
    for ids in (IDS, IDS[:9], IDS[3:], IDS):
        served(model, cache, ids)
        assert cache.pool.available == 5
        assert not any(cache.pool.holders)
    assert not cache.rooms


def test_a_pass_for_which_blocks_are_short_changes_nothing(model: Decoder) -> None:
    cache = paged(model, 4)
    first, second = cache.open(), cache.open()
    run(model, cache, first, IDS[: BLOCK + 1])
    run(model, cache, second, IDS[BLOCK : 2 * BLOCK])
    parts = [Part(first, BLOCK - 1), Part(second, 2 * BLOCK)]
    assert cache.needed(parts) == 2
    with pytest.raises(CacheFullError, match=r"2 more blocks .* needed and 1 of 4 can be had"):
        cache.reserve(parts)
    assert (len(first.blocks), len(second.blocks), cache.pool.available) == (2, 1, 1)
    cache.close(first)
    cache.reserve(parts[1:])


def test_what_the_pool_cannot_hold_is_refused_as_such(model: Decoder) -> None:
    """Waiting would not help, so this is not the error that makes a scheduler wait."""
    cache = paged(model, 2)
    for ask in (
        lambda: cache.open(9),
        lambda: cache.admit(IDS[:9], 9),
        lambda: cache.reserve([Part(cache.open(), 9)]),
    ):
        with pytest.raises(RequestError, match="holds 8 tokens, 9 were asked for") as caught:
            ask()
        assert not isinstance(caught.value, CacheFullError)
    with pytest.raises(RequestError, match="at least one token, got 0 of 4"):
        paged(model, 0)


def test_memory_is_known_and_refused_beforehand(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PagedCache(model.spec, 3, 8, dtype=torch.bfloat16)
    taken = sum(store.data.nbytes for store in cache.stores())
    monkeypatch.setattr(caches, "free_bytes", lambda device: taken - 1)
    with pytest.raises(RequestError, match="for 3 times 8 tokens needs"):
        PagedCache(model.spec, 3, 8, dtype=torch.bfloat16)


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [BLOCK, BLOCK + 2])
def test_forks_share_their_blocks_and_part_when_one_writes(model: Decoder, length: int) -> None:
    """A block that is not full is copied, once for each of all but one of its holders."""
    cache = paged(model)
    prompt, answers = IDS[:length], [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]
    first = cache.admit(prompt, length)
    run(model, cache, first, prompt)
    rooms = [first, cache.fork(first), cache.fork(first)]
    assert cache.pool.available == 12 - math.ceil(length / BLOCK)
    copies = 2 if length % BLOCK else 0
    assert cache.needed([Part(room, 1) for room in rooms]) == (copies or 3)
    rows = [run(model, cache, room, prompt + a, 1) for room, a in zip(rooms, answers, strict=True)]
    for answer, row in zip(answers, rows, strict=True):
        assert same(row, naive(model, prompt + answer)[length:])
    for room in rooms:
        cache.close(room)
    assert cache.pool.available == 12


def test_forks_that_write_in_one_pass_are_counted_as_they_are_copied(model: Decoder) -> None:
    cache = paged(model, 3)
    first = cache.open()
    run(model, cache, first, IDS[: BLOCK + 1])
    rooms = [first, cache.fork(first)]
    with torch.inference_mode():
        logits = model(torch.tensor([[7, 8]]), cache, [Part(room, 1) for room in rooms])[0]
    assert cache.pool.available == 0
    for token, row in zip((7, 8), logits, strict=True):
        assert same(row[None], naive(model, [*IDS[: BLOCK + 1], token])[-1:])


def test_a_fork_shares_no_blocks_that_wait_for_tokens(model: Decoder) -> None:
    """Admitted, a room has its blocks ahead of its tokens."""
    cache = paged(model)
    room = cache.admit(IDS, len(IDS))
    run(model, cache, room, IDS[:3])
    twin = cache.fork(room)
    assert twin.blocks == room.blocks[:1]
    rest = [*IDS[:3], 40, 41, 42]
    assert same(run(model, cache, twin, rest), naive(model, rest)[3:])
    assert same(run(model, cache, room, IDS), naive(model, IDS)[3:])
