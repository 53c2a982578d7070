"""An int8 cache: each token's numbers to half a step of its own head, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.cache import Cache, ContiguousCache, PagedCache, RingCache, cache_bytes
from engine.cache.store import Int8Store, Run, to_int8
from engine.decoder import Decoder
from engine.probe import attached
from engine.spec import ModelSpec
from tests.engine import tiny, zoo

IDS = [n * 7 % 31 for n in range(24)]
CHUNKS = [[24], [5, 1, 11, 1, 6], [1] * 24]
KINDS: dict[str, Callable[..., Cache]] = {
    "contiguous": lambda spec, **how: ContiguousCache(spec, 24, **how),
    "ring": lambda spec, **how: RingCache(spec, 24, longest_pass=24, **how),
    "paged": lambda spec, **how: PagedCache(spec, 6, 4, poison=True, **how),
}


def kept(new: Tensor) -> Tensor:
    """What a store gives back of new [heads, T, width]."""
    everything = Run(slice(0, 1), slice(0, new.shape[1]))
    store = Int8Store((1, *new.shape), new.dtype, torch.device("cpu"))
    store.write(everything, new[None])
    return store.read(everything)[0]


def rounded(row: Tensor) -> Tensor:
    """The definition, for a row of numbers: 127 equal steps to the largest, up and down from 0."""
    step = float(torch.tensor(float(row.abs().max())) / 127)
    return row if step == 0 else torch.tensor([step * round(float(x) / step) for x in row]).to(row)


# -- a row -----------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_each_row_is_off_by_half_a_step_of_its_own_at_most(seed: int, dtype: torch.dtype) -> None:
    """Heads and tokens of very different sizes: a scale that two of them shared would show."""
    rng = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-6, 5, (3, 4, 1), generator=rng)
    new = (torch.randn(3, 4, 5, generator=rng) * sizes).to(dtype)
    largest = new.double().abs().amax(-1)
    error = (kept(new).double() - new.double()).abs().amax(-1) / largest
    assert error.max() <= 0.5 / 127 + torch.finfo(dtype).eps
    assert kept(new).dtype == dtype


@given(st.integers(0, 10**6))
def test_the_largest_number_survives_and_signs_make_no_difference(seed: int) -> None:
    """No zero point, and no -128 that has no counterpart."""
    new = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(seed))
    numbers, _ = to_int8(new)
    assert torch.equal(kept(-new), -kept(new))
    assert (numbers.abs().amax(-1) == 127).all()
    largest = new.abs().amax(-1)
    torch.testing.assert_close(kept(new).abs().amax(-1), largest, rtol=2e-7, atol=0)


def test_zeros_stay_zeros_and_what_is_not_finite_stays_visible() -> None:
    new = torch.tensor([[0.0, -0.0, 0.0], [0.0, 1.0, torch.inf], [0.0, 1.0, torch.nan]])[None]
    back = kept(new)[0]
    assert torch.equal(back[0], torch.zeros(3))
    assert not back[1].isfinite().all()
    assert not back[2].isfinite().all()


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e38])
def test_the_smallest_and_the_largest_numbers_do_not_overflow(size: float) -> None:
    new = torch.tensor([[size, -size, size / 3]])[None]
    back = kept(new)
    assert back.isfinite().all()
    assert (back.sign() * new.sign() >= 0).all()
    assert (back.abs() <= max(size, torch.finfo(torch.float32).tiny)).all()


# -- whole models ----------------------------------------------------------------------------------


def in_float64(spec: ModelSpec) -> Decoder:
    """Almost throughout, so that no order of sums is likely to round a number to another step."""
    return tiny.decoder_of(spec).double()


def as_defined(model: Decoder) -> Tensor:
    """The logits of one pass with a cache that keeps everything, whose rows are rounded as they are read."""
    cache = ContiguousCache(model.spec, len(IDS), dtype=torch.float64)

    def rounds(probe: str, value: Tensor) -> Tensor:
        rows = value.reshape(-1, value.shape[-1])
        return torch.stack([rounded(row) for row in rows]).view_as(value)

    with attached(rounds, ("cache", cache)):
        return tiny.logits(model, IDS, cache=cache)


@pytest.mark.parametrize("name", zoo.ZOO)
def test_it_is_a_cache_whose_rows_are_rounded_however_the_tokens_come(name: str) -> None:
    """New tokens too are read as they are kept, so that a chunk's end is nowhere to be seen."""
    model = in_float64(zoo.ZOO[name])
    expected = as_defined(model)
    exact = tiny.logits(model, IDS, cache=ContiguousCache(model.spec, 24, dtype=torch.float64))
    moved = (expected - exact).abs().max()
    assert moved > 1e-4 * exact.abs().max()
    for kind, make in KINDS.items():
        for steps in CHUNKS:
            cache = make(model.spec, dtype=torch.float64, store=Int8Store)
            off = (tiny.logits(model, IDS, steps, cache) - expected).abs().max()
            assert off < 1e-3 * moved, f"{kind} in steps of {steps}"


@pytest.mark.parametrize("kind", KINDS)
def test_its_bytes_are_known_beforehand(kind: str) -> None:
    spec = zoo.ZOO["windows"]
    cache = KINDS[kind](spec, store=Int8Store)
    taken = sum(part.data.nbytes for part in cache.stores())
    assert cache_bytes(spec, cache.layouts, torch.float32, Int8Store) == taken
    # Heads of 6 numbers: 6 bytes and a scale of 4, instead of 24.
    assert taken * 24 == cache_bytes(spec, cache.layouts, torch.float32) * 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_has_the_same_numbers_and_its_own(kind: str) -> None:
    model = in_float64(zoo.ZOO["windows"])
    how = {} if kind == "paged" else {"batch": 2}
    cache = KINDS[kind](model.spec, dtype=torch.float64, store=Int8Store, **how)
    alone = tiny.logits(
        model, IDS[:9], cache=KINDS[kind](model.spec, dtype=torch.float64, store=Int8Store)
    )
    room = cache.open()
    with torch.inference_mode():
        model(torch.tensor([IDS[:8]]), cache)
        twin = cache.fork(room)
        model(torch.tensor([[3]]), cache)
        cache.close(room)
        last = model(torch.tensor([IDS[8:9]]), cache)[0, 0]
    assert cache.rooms == [twin]
    torch.testing.assert_close(last, alone[-1], rtol=1e-5, atol=1e-5)
