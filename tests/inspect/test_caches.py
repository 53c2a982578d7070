"""What the page says of caches, held against real ones and counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.cache import BLOCK_SIZE
from engine.cache.store import Int8Store, Store
from engine.decoder import Decoder
from engine.footprint import footprint
from engine.inspect import caches, inspected
from engine.layers import Linear
from engine.spec import ModelSpec

IDS = [i * 7 % 41 for i in range(21)]
F32 = torch.float32


def sizes(spec: ModelSpec, kind: str = "ring", **changes: Any) -> dict[str, tuple[int, int]]:
    """By variant the bytes now, for 20 tokens, and at the context's end."""
    options = {"dtype": F32, "store": Store, "longest_pass": 512, "now": 20, **changes}
    found = caches.growth(spec, kind, **options)
    return {each["name"]: (each["now"], each["bytes"][-1]) for each in found["variants"]}


def test_bytes_are_those_of_the_caches_themselves(windowed: Engine) -> None:
    spec = windowed.spec
    for kind in ("ring", "contiguous"):
        for name, tokens in (("now", 20), ("bytes", spec.context)):
            planned = footprint(REPOSITORY_GOLDENS / "gemma2", tokens, cache=kind).cache
            grown = caches.growth(spec, kind, F32, Store, 512, 20)["variants"][0]
            assert planned == (grown["now"] if name == "now" else grown["bytes"][-1])
    held = caches.held(windowed.new_cache(20))
    assert sum(layer["bytes"] for layer in held) == sizes(spec)["this cache"][0]
    attn = spec.layers[0].attn
    assert held[0]["per_token"] == 2 * attn.n_kv_heads * attn.head_dim * 4


def test_comparisons_change_one_thing_alone(windowed: Engine) -> None:
    spec = windowed.spec
    attn = spec.layers[0].attn
    found = sizes(spec)
    now, last = found["this cache"]
    shared = attn.n_heads // attn.n_kv_heads
    assert found["multi-head"] == (shared * now, shared * last)
    assert found["bfloat16"] == (now / 2, last / 2)
    assert found["int8"] == tuple(
        int(n * (attn.head_dim + 4) / attn.head_dim / 4) for n in (now, last)
    )
    assert found["no cache"] == (0, 0)
    assert found["without a ring"][1] == sizes(spec, "contiguous")["this cache"][1]
    assert "float32" not in found
    kept = sizes(spec, store=Int8Store)
    assert "int8" not in kept
    assert kept["float32"] == found["this cache"]


def test_a_latent_is_held_against_all_heads_that_are_read_from_it() -> None:
    spec = Engine.load(REPOSITORY_GOLDENS / "deepseek-v3").spec
    attn = spec.layers[0].attn
    found = sizes(spec)
    read = attn.n_heads * (attn.nope_dim + attn.rope_dim + attn.v_dim)
    kept = attn.kv_rank + attn.rope_dim
    assert found["multi-head"][0] == found["this cache"][0] * (read // 2 * 2) / kept


@pytest.mark.parametrize("window", ["ring", "contiguous", "paged"])
def test_places_are_where_a_real_cache_has_its_tokens(windowed: Engine, window: str) -> None:
    """Every position that is still held, by the arithmetic of its kind."""
    found = [p for p in caches.places(windowed.spec, 21, 9, 4) if p["kind"] == window]
    assert len(found) == (2 if window == "ring" else 1)  # windows differ in rings alone
    for place in found:
        for step, runs in enumerate(place["after"]):
            length = 21 + step
            held = {slot + i: position + i for slot, position, n in runs for i in range(n)}
            kept = range(max(0, length - place["slots"]), length)
            if window == "paged":
                # Of two sequences that grow together each has every other block.
                expected = {
                    p // BLOCK_SIZE * 2 * BLOCK_SIZE + p % BLOCK_SIZE: p for p in range(length)
                }
            else:
                expected = {p % place["slots"]: p for p in kept}
            assert held == expected
        assert len(place["after"]) == 9


def test_a_ring_comes_round(windowed: Engine) -> None:
    (ring,) = [p for p in caches.places(windowed.spec, 21, 9, 4) if p["window"] == 8]
    assert ring["slots"] == 8 - 1 + 4
    assert ring["after"][0] == [[10, 10, 1], [0, 11, 10]]
    assert ring["block"] is None


def test_work_is_counted_by_hand(engine: Engine) -> None:
    """Of the tiny llama: maps of each token, two products of attention, a head for each answer."""
    spec, decoder = engine.spec, engine.decoder
    assert isinstance(decoder, Decoder)
    maps = sum(
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, Linear) and name != "logits"
    )
    attn = spec.layers[0].attn
    scores = 2 * attn.n_heads * attn.head_dim * spec.n_layers

    def expected(positions: list[int], answers: int) -> dict[str, int]:
        seen = sum(p + 1 for p in positions)
        head = answers * spec.dim * spec.vocab_size
        return {
            "tokens": len(positions),
            "multiplications": maps * len(positions) + scores * seen + head,
        }

    found = caches.work(spec, 5, 3)
    assert found["prefill"] == expected([*range(5)], 1)
    assert found["with_cache"] == expected([*range(7)], 3)
    assert found["without"] == expected([*range(5), *range(6), *range(7)], 3)


@pytest.mark.parametrize("golden", ["deepseek-v3", "mixtral", "gpt2"])
def test_maps_of_a_layer_are_those_that_a_token_meets(golden: str) -> None:
    engine = Engine.load(REPOSITORY_GOLDENS / golden)
    for layer, block in zip(engine.spec.layers, engine.decoder.layers, strict=True):
        met = sum(m.weight.numel() for m in block.modules() if isinstance(m, Linear))
        experts = [p for p in block.parameters() if p.ndim == 3]
        met += sum(p.numel() * layer.mlp.top_k // len(p) for p in experts)
        assert caches.multiplied(engine.spec, layer) == met


def test_windows_bound_what_a_token_is_multiplied_with(windowed: Engine) -> None:
    spec = windowed.spec
    attn = spec.layers[0].attn
    first = caches.work(spec, 30, 1)["prefill"]["multiplications"]
    second = caches.work(spec, 31, 1)["prefill"]["multiplications"]
    maps = sum(caches.multiplied(spec, layer) for layer in spec.layers)
    assert second - first - maps == 2 * attn.n_heads * attn.head_dim * (8 + 31 + 8)


def test_a_paged_engine_is_inspected_in_a_cache_of_its_own() -> None:
    engine = Engine.load(REPOSITORY_GOLDENS / "llama-gqa", cache="paged")
    held = engine.pages.pool.available
    found = inspected(engine, IDS, SamplingParams(max_tokens=3))
    assert found["cache"]["kind"] == "paged"
    assert engine.pages.pool.available == held
