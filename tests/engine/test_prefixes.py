"""Beginnings that are known are not computed again; what was given up is known no more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.cache import PagedCache, Part
from engine.cache.prefixes import Prefixes
from engine.decoder import Decoder
from engine.errors import CacheFullError
from tests.engine import tiny
from tests.engine.paging import BLOCK, IDS, naive, paged, run, same, served
from tests.engine.test_lengths import ORIGINAL, ROPES

OTHER = [49 - token for token in IDS]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny.decoder(tiny.CASE)


# -- the tree --------------------------------------------------------------------------------------


def test_a_part_of_a_block_matches_token_by_token() -> None:
    tree = Prefixes(4)
    first = tree.add(tree.roots[0], (1, 2, 3, 4), 7)
    second = tree.add(first, (5, 6), 8)
    assert tree.match(0, [1, 2, 3, 4, 5, 6, 9]) == ([first, second], 6)
    assert tree.match(0, [1, 2, 3, 4, 5, 9]) == ([first, second], 5)
    assert tree.match(0, [1, 2, 3, 9, 5, 6]) == ([first], 3)
    assert tree.match(0, [1, 2]) == ([first], 2)
    assert tree.match(0, [2, 1]) == ([], 0)
    assert tree.match(1, [1, 2, 3, 4]) == ([], 0), "another kind of keys"


def test_the_longest_of_several_matches() -> None:
    tree = Prefixes(4)
    root = tree.roots[0]
    short, long = tree.add(root, (1, 2, 9), 0), tree.add(root, (1, 2, 3, 9), 1)
    assert tree.match(0, [1, 2, 3, 4]) == ([long], 3)
    assert tree.match(0, [1, 2, 9, 4]) == ([short], 3)


def test_equal_tokens_are_one_node_and_a_fuller_block_replaces_its_beginning() -> None:
    tree = Prefixes(4)
    root = tree.roots[0]
    part = tree.add(root, (1, 2), 5)
    assert tree.add(root, (1, 2), 6) is part
    assert tree.known(6) == 0
    full = tree.add(root, (1, 2, 3, 4), 5)
    assert (full.block, tree.known(5), list(root.children)) == (5, 4, [(1, 2, 3, 4)])
    assert tree.add(root, (1, 2, 3), 6) is full, "what begins a node is known"
    tree.forget(5)
    assert tree.match(0, [1, 2, 3, 4]) == ([], 0)


# -- reuse -----------------------------------------------------------------------------------------


def test_a_prefix_of_500_tokens_is_computed_once() -> None:
    """500 is no multiple of 16: the block in which the two part is shared up to its fourth token."""
    model = tiny.decoder({**tiny.CASE, "max_position_embeddings": 1024})
    cache = PagedCache(model.spec, 80, 16, poison=True)
    prefix = [i * i % 50 for i in range(500)]
    served(model, cache, prefix + IDS)
    assert (cache.hits, cache.misses) == (0, 519)
    second = prefix + OTHER
    logits = served(model, cache, second)
    assert len(logits) == len(OTHER)
    assert (cache.hits, cache.misses) == (500, 519 + 19)
    assert same(logits, naive(model, second)[500:])
    assert len(served(model, cache, prefix + IDS)) == 1, "the first one is still known as a whole"


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK])
def test_of_a_known_prompt_the_last_token_is_computed(model: Decoder, length: int) -> None:
    """So that its logits exist, at a block's edge too."""
    cache, ids = paged(model), IDS[:length]
    served(model, cache, ids)
    again = served(model, cache, ids)
    assert len(again) == 1
    assert same(again, naive(model, ids)[-1:])
    assert cache.hits == length - 1


def test_who_wants_all_logits_reuses_nothing(model: Decoder) -> None:
    cache = paged(model)
    served(model, cache, IDS)
    room = cache.admit(IDS, len(IDS), reuse=False)
    assert room.length == cache.hits == 0
    assert same(run(model, cache, room, IDS), naive(model, IDS))


def test_answers_are_known_too(model: Decoder) -> None:
    """The next turn of a conversation begins with the last one's answer."""
    cache = paged(model)
    room = cache.admit(IDS[:6], 6)
    run(model, cache, room, IDS[:6])
    run(model, cache, room, IDS[:11], 1)
    cache.close(room)
    logits = served(model, cache, IDS)
    assert len(logits) == len(IDS) - 11
    assert same(logits, naive(model, IDS)[11:])


def test_full_blocks_are_known_while_their_sequence_runs(model: Decoder) -> None:
    cache = paged(model)
    first = cache.admit(IDS, len(IDS))
    run(model, cache, first, IDS)
    second = cache.admit(IDS, len(IDS))
    assert second.length == 16
    assert second.blocks[:4] == first.blocks[:4]
    assert second.blocks[4] != first.blocks[4]


def test_what_was_not_written_is_not_known(model: Decoder) -> None:
    """A room has blocks for all of a prompt from the start, and its tokens come in chunks."""
    cache = paged(model)
    room = cache.admit(IDS, len(IDS))
    run(model, cache, room, IDS[:6])
    cache.learn(room, IDS)
    assert cache.admit(IDS, len(IDS)).length == BLOCK
    cache.close(room)
    assert cache.admit(IDS, len(IDS)).length == 6


def test_equal_sequences_that_ran_at_once_keep_one_copy(model: Decoder) -> None:
    cache = paged(model)
    rooms = [cache.admit(IDS, len(IDS)) for _ in range(2)]
    assert not set(rooms[0].blocks) & set(rooms[1].blocks)
    for room in rooms:
        run(model, cache, room, IDS)
    assert rooms[0].blocks[:4] == rooms[1].blocks[:4]
    assert cache.pool.available == 12 - 6
    assert same(run(model, cache, rooms[1], [*IDS, 1, 2]), naive(model, [*IDS, 1, 2])[-2:])


def test_a_shared_block_is_not_written_by_those_who_go_on_differently(model: Decoder) -> None:
    """Three that share six tokens: a block and a half, which the first one's own tokens follow."""
    cache = paged(model)
    served(model, cache, IDS)
    forks = [[*IDS[:6], tail, tail + 1, tail + 2] for tail in (1, 11)]
    rooms = [cache.admit(ids, len(ids)) for ids in forks]
    assert [room.length for room in rooms] == [6, 6]
    for room, ids in zip(rooms, forks, strict=True):
        assert same(run(model, cache, room, ids), naive(model, ids)[6:])
    assert same(served(model, cache, IDS), naive(model, IDS)[-1:])


# -- eviction --------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first_and_the_ends_before_the_beginnings(
    model: Decoder,
) -> None:
    cache = paged(model, 9)
    a, b = IDS[:16], OTHER[:12]
    for ids in (a, b, a):  # used again: now b is the older one
        served(model, cache, ids)
    served(model, cache, [*OTHER[1:10], 0])  # three blocks: the two free ones, and b's last
    assert cache.evictions == 1
    assert [cache.prefixes.match((), ids)[1] for ids in (a, b)] == [16, 8]
    served(model, cache, [*OTHER[2:9], 0])
    assert cache.evictions == 3
    assert [cache.prefixes.match((), ids)[1] for ids in (a, b)] == [16, 0]
    served(model, cache, [*OTHER[3:8], 0])
    assert [cache.prefixes.match((), ids)[1] for ids in (a, b)] == [8, 0]


def test_evicted_blocks_are_known_no_more(model: Decoder) -> None:
    cache = paged(model, 3)
    served(model, cache, IDS[:12])
    served(model, cache, OTHER[:12])
    assert cache.evictions == 3
    hits = cache.hits
    assert same(served(model, cache, IDS[:12]), naive(model, IDS[:12]))
    assert cache.hits == hits


def test_a_sequence_that_fits_alone_is_not_refused_for_what_is_known(model: Decoder) -> None:
    """It needs the whole pool, and the block that it shares a part of cannot be kept beside that."""
    cache = paged(model, 3)
    served(model, cache, IDS[:12])
    ids = [*IDS[:10], 48, 49]
    assert same(served(model, cache, ids), naive(model, ids)[10:])
    assert len(served(model, cache, IDS[:12])) == 2


@torch.inference_mode()
def test_what_is_overwritten_in_need_is_known_no_more(model: Decoder) -> None:
    """No block is left for a copy of the one that two beginnings share, and the second leaves early."""
    cache = paged(model, blocks=1)
    served(model, cache, [1, 2, 3])
    room = cache.admit([1, 2, 9], 3)
    model(torch.tensor([[9]]), cache, [Part(room, 1)])
    cache.close(room)
    ids = [1, 2, 3, 5]
    logits = served(model, cache, ids)
    assert same(logits, naive(model, ids)[-len(logits) :])


def test_nobody_is_evicted_for_one_who_cannot_be_admitted(model: Decoder) -> None:
    cache = paged(model, 4)
    served(model, cache, OTHER[:4])
    room = cache.admit(IDS[:8], 8)
    run(model, cache, room, IDS[:8])
    for _ in range(2):
        with pytest.raises(CacheFullError):
            cache.admit([*IDS[:6], *OTHER[:7]], 13)
    assert (cache.evictions, cache.hits, cache.misses) == (0, 0, 12)
    assert cache.pool.available == 2
    assert len(served(model, cache, OTHER[:4])) == 1


# -- ropes that follow the length ------------------------------------------------------------------


def following(rope: str) -> Decoder:
    """A tiny model whose frequencies change behind its twelfth token."""
    config: dict[str, Any] = {k: v for k, v in tiny.CASE.items() if k != "rope_theta"}
    positions = ORIGINAL if rope == "dynamic" else 48
    changes = {"rope_parameters": ROPES[rope], "max_position_embeddings": positions}
    return tiny.decoder(config | changes)


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize(("first", "second"), [(8, 11), (11, 16), (16, 8), (16, 19), (16, 16)])
def test_keys_are_shared_by_sequences_whose_frequencies_they_have(
    rope: str, first: int, second: int
) -> None:
    """LongRoPE has two kinds of keys; the base of dynamic NTK is another at each length."""
    model = following(rope)
    cache = paged(model)
    served(model, cache, IDS[:first])
    logits = served(model, cache, IDS[:second])
    alike = (first > ORIGINAL) == (second > ORIGINAL)
    if rope == "dynamic" and second > ORIGINAL:
        alike = first == second
    assert cache.hits == (min(first, second - 1) if alike else 0)
    assert same(logits, naive(model, IDS[:second])[-len(logits) :])


def test_keys_of_two_kinds_in_one_room_are_not_shared() -> None:
    """As in an answer that goes beyond the context, where the base grows from token to token."""
    model = following("dynamic")
    cache = paged(model)
    room = cache.admit(IDS[:10], 10)
    run(model, cache, room, IDS[:10])
    run(model, cache, room, IDS, 1)
    cache.close(room)
    assert cache.admit(IDS[:12], 12).length == 11, "the blocks that were full before it"
    assert cache.admit(IDS, len(IDS)).length == 0


def test_a_pass_that_reads_as_another_length_is_not_shared() -> None:
    model = following("longrope")
    cache = paged(model)
    room = cache.open()
    with torch.inference_mode():
        model(torch.tensor([IDS[:8]]), cache, [Part(room, 8)], read_as=20)
    cache.learn(room, IDS[:8])
    assert cache.admit(IDS[:10], 10).length == 0
    assert cache.admit(IDS[:10], 20).length == 8
