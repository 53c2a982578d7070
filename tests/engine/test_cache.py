"""The contiguous cache: allocated once, written in place, read by length, refused when too large."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import pytest
import torch

import engine.cache.cache
from engine.cache import ContiguousCache, cache_bytes
from engine.cache.contiguous import Rows
from engine.errors import RequestError
from engine.families import read_spec
from engine.probe import attached
from engine.spec import ModelSpec
from tests.engine import tiny

_, SPEC = read_spec(tiny.CASE)
LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
}


def storages(cache: ContiguousCache) -> list[int]:
    return [store.data.data_ptr() for store in cache.stores()]


def bytes_of(spec: ModelSpec, capacity: int, batch: int, dtype: torch.dtype) -> int:
    """What `batch` rows of `capacity` tokens take, in a model without windows."""
    return cache_bytes(spec, {None: Rows(batch, capacity, torch.device("cpu"))}, dtype)


def test_it_is_written_in_place_and_never_grows() -> None:
    """A cache that is grown with `cat` copies itself at every token."""
    model = tiny.decoder(tiny.CASE)
    cache = ContiguousCache(model.spec, 24)
    before = storages(cache)
    assert len(set(before)) == 2 * 2, "one tensor for the keys and one for the values of each layer"
    tiny.logits(model, tiny.CASE_IDS, [5, 1, 1, 17], cache)
    assert storages(cache) == before
    assert cache.length == 24
    assert {store.data.shape for store in cache.stores()} == {(1, 2, 24, 8)}


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_what_is_read_is_a_view_of_what_is_stored(backend: str) -> None:
    """Attention over a copy would cost as much as the cache at every token."""
    model = tiny.decoder(tiny.CASE, backend)
    cache = ContiguousCache(model.spec, 24)
    pointers: list[int] = []

    def look(probe: str, value: torch.Tensor) -> torch.Tensor:
        pointers.append(value.data_ptr())
        return value

    with attached(look, ("cache", cache)):
        tiny.logits(model, tiny.CASE_IDS[:9], [7, 1, 1], cache)
    assert pointers == storages(cache) * 3


def test_it_has_as_many_heads_as_there_are_key_value_heads() -> None:
    """Not one per query head: Llama-3-8B has 32 of those and 8 of these."""
    _, spec = read_spec(LLAMA_3_8B)
    assert spec.n_layers == 32
    assert {layer.attn.n_kv_heads for layer in spec.layers} == {8}
    # 2 (k and v) * 32 layers * 8 heads * 128 numbers * 2 bytes = 128 KiB a token.
    assert bytes_of(spec, 1, 1, torch.bfloat16) == 128 * 1024
    assert bytes_of(spec, 8192, 3, torch.bfloat16) == 3 * 8192 * 128 * 1024


def test_the_bytes_asked_for_are_the_bytes_taken() -> None:
    cache = ContiguousCache(SPEC, 10, batch=3, dtype=torch.bfloat16)
    taken = sum(store.data.nbytes for store in cache.stores())
    assert taken == bytes_of(SPEC, 10, 3, torch.bfloat16)


@pytest.mark.parametrize("steps", [[9], [8, 1], [1] * 9, [5, 4]])
def test_a_token_too_many_is_refused_and_leaves_the_cache_as_it_was(steps: list[int]) -> None:
    model = tiny.decoder(tiny.CASE)
    cache = ContiguousCache(model.spec, 8)
    fits = steps[:-1]
    if fits:
        tiny.logits(model, tiny.CASE_IDS[: sum(fits)], fits, cache)
    with pytest.raises(RequestError, match="holds 8 tokens, 9 were asked for"):
        tiny.logits(model, tiny.CASE_IDS[sum(fits) : 9], steps[-1:], cache)
    assert cache.length == sum(fits)


def test_what_does_not_fit_into_memory_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is allocated: an allocation that fails half way takes others down with it."""
    needed = bytes_of(SPEC, 1 << 20, 1, torch.float32)
    monkeypatch.setattr(engine.cache.cache, "free_bytes", lambda device: needed - 1)
    monkeypatch.setattr(
        torch, "zeros", lambda *a, **k: pytest.fail("allocated before it was asked")
    )
    numbers = rf"{needed / 2**20:,.0f} MiB.*{(needed - 1) / 2**20:,.0f} MiB"
    with pytest.raises(RequestError, match=numbers):
        ContiguousCache(SPEC, 1 << 20)


def test_an_absurd_number_of_tokens_is_refused_on_this_machine() -> None:
    with pytest.raises(RequestError, match=re.compile(r"needs .* MiB and .* MiB are free")):
        ContiguousCache(SPEC, 10**12)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_slots_that_were_never_written_reach_no_output(backend: str) -> None:
    """NaN times a weight of zero is NaN: unwritten slots must not be multiplied at all."""
    model = tiny.decoder(tiny.CASE, backend)
    cache = ContiguousCache(model.spec, 40)
    for store in cache.stores():
        store.data.fill_(torch.nan)
    clean = ContiguousCache(model.spec, 24)
    steps = [10, 1, 12, 1]
    poisoned = tiny.logits(model, tiny.CASE_IDS, steps, cache)
    assert torch.equal(poisoned, tiny.logits(model, tiny.CASE_IDS, steps, clean))
    assert all(layer.stores["k"].data[:, :, 24:].isnan().all() for layer in cache.layers)


def test_a_dropped_cache_is_freed_at_once() -> None:
    """A reference cycle would keep gigabytes until the garbage collector comes by."""
    gc.disable()
    try:
        model = tiny.decoder(tiny.CASE)
        cache = ContiguousCache(model.spec, 24)
        freed: list[bool] = []
        weakref.finalize(cache.layers[0], freed.append, True)
        tiny.logits(model, tiny.CASE_IDS, cache=cache)
        del cache
        assert freed
    finally:
        gc.enable()
