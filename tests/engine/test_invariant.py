"""The batch-invariant mode: bits that no batch, cut or cache changes; and the ordinary mode, which has none such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine import Engine, invariant
from engine.arithmetic import Arithmetic
from engine.cache import Cache, ContiguousCache, Part, RingCache
from engine.decoder import Decoder
from engine.errors import RequestError
from engine.families import read_spec
from engine.invariant import KEYS, PIECE, Invariant
from engine.spec import ModelSpec
from tests.conformance.tiny_families import CONFIGS
from tests.engine import tiny
from tests.engine.zoo import ATTENTION, LAYER, ZOO, model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LONGEST = 6  # tokens of a sequence in a pass
SPECS: dict[str, ModelSpec] = {
    **ZOO,
    **{name: read_spec({"model_type": name, **config})[1] for name, config in CONFIGS.items()},
}
Make = Callable[[ModelSpec, int, torch.dtype], Cache]
CACHES: dict[str, Make] = {
    "contiguous": lambda spec, batch, dtype: ContiguousCache(
        spec, spec.context, batch=batch, dtype=dtype
    ),
    "ring": lambda spec, batch, dtype: RingCache(
        spec, spec.context, batch=batch, longest_pass=LONGEST, dtype=dtype
    ),
}


def decoder(spec: ModelSpec, dtype: torch.dtype, fixed: bool = True) -> Decoder:
    made = tiny.decoder_of(spec).to(dtype)
    if fixed:
        made.use_invariant()
    return made


def alone(decoder: Decoder, ids: list[int], dtype: torch.dtype) -> Tensor:
    """Logits [T, V] of one pass."""
    with torch.inference_mode():
        cache = ContiguousCache(decoder.spec, len(ids), dtype=dtype)
        logits: Tensor = decoder(torch.tensor([ids]), cache)[0]
    return logits


@torch.inference_mode()
def together(
    decoder: Decoder, prompts: list[list[int]], cache: Cache, cut: Callable[[], int]
) -> list[Tensor]:
    """Each one's logits, where every pass takes the next few tokens of some of them, as `cut` says."""
    rooms = [cache.open() for _ in prompts]
    logits: list[list[Tensor]] = [[] for _ in prompts]
    while True:
        left = [len(ids) - room.length for ids, room in zip(prompts, rooms, strict=True)]
        if not any(left):
            return [torch.cat(mine) for mine in logits]
        sizes = [min(n, cut()) for n in left]
        taken = [b for b, n in enumerate(sizes) if n] or [left.index(max(left))]
        parts = [Part(rooms[b], max(1, sizes[b])) for b in taken]
        row = [
            token
            for b, part in zip(taken, parts, strict=True)
            for token in prompts[b][part.room.length : part.room.length + part.n]
        ]
        result = decoder(torch.tensor([row]), cache, parts)[0]
        for b, share in zip(taken, result.split([part.n for part in parts]), strict=True):
            logits[b].append(share)


def differing(spec: ModelSpec, dtype: torch.dtype, data: st.DataObject, fixed: bool) -> int:
    """How many of a few random prompts have other bits in company than alone."""
    model = decoder(spec, dtype, fixed)
    ids = st.lists(st.integers(0, spec.vocab_size - 1), min_size=1, max_size=24)
    prompts = data.draw(st.lists(ids, min_size=1, max_size=4))
    cache = CACHES[data.draw(st.sampled_from(sorted(CACHES)))](spec, len(prompts), dtype)
    got = together(model, prompts, cache, lambda: data.draw(st.integers(0, LONGEST)))
    pairs = zip(got, (alone(model, each, dtype) for each in prompts), strict=True)
    assert all(a.isfinite().all() for a in got)
    return sum(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SPECS)
@tiny.examples(3)
@given(data=st.data())
def test_bits_are_the_same_in_any_company_cut_and_cache(
    kind: str, dtype: str, data: st.DataObject
) -> None:
    assert differing(SPECS[kind], DTYPES[dtype], data, fixed=True) == 0


def test_in_the_ordinary_mode_bits_do_differ() -> None:
    """Else the test above would hold whatever the mode did."""
    for kind, spec in SPECS.items():
        model = decoder(spec, torch.float32, fixed=False)
        ids = [i * 7 % spec.vocab_size for i in range(24)]
        cache = ContiguousCache(spec, len(ids))
        (got,) = together(model, [ids], cache, lambda: 5)
        whole = alone(model, ids, torch.float32)
        assert not torch.equal(got, whole), kind
        torch.testing.assert_close(got, whole, rtol=1e-3, atol=1e-3)


def long_window() -> tuple[ModelSpec, list[int]]:
    """A model whose ring begins in the middle of a tile of keys, and a prompt that goes round it."""
    wide = replace(ATTENTION, head_dim=40)
    layers = [replace(LAYER, attn=replace(wide, window=w)) for w in (KEYS + 9, None)]
    spec = replace(model(*layers), context=2 * KEYS + 40)
    return spec, [i * 5 % spec.vocab_size for i in range(spec.context)]


def same_in_a_ring() -> bool:
    """Whether tokens that come one by one, and a few at a time, have the bits of one pass."""
    spec, ids = long_window()
    made = decoder(spec, torch.float32)
    whole = alone(made, ids, torch.float32)
    for n in (1, LONGEST):
        cache = CACHES["ring"](spec, 1, torch.float32)
        (got,) = together(made, [ids], cache, repeat(n).__next__)
        if not torch.equal(got, whole):
            return False
    return True


def test_bits_are_the_same_where_a_ring_begins_within_a_tile_of_keys() -> None:
    """Tiles of keys begin at positions, not at the slots of a cache."""
    assert same_in_a_ring()


FAULTS: dict[str, tuple[object, str, object]] = {
    "products of as many rows as there are": (Invariant, "linear", Arithmetic.linear),
    "functions of as many numbers as there are": (Invariant, "each", Arithmetic.each),
    "keys from the first slot on": (invariant, "KEYS", 1),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_each_part_of_the_mode_is_needed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that must be seen: one of the shapes goes with the company again.

    Queries are padded by the same reasoning; on the CPUs tried here leaving that out changed no bit.
    """
    monkeypatch.setattr(*FAULTS[fault])
    assert not same_in_a_ring()


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_functions_of_numbers_give_the_same_bits_wherever_a_number_stands(name: str) -> None:
    """torch computes what is left over of a vector register another way: see the last assertion."""
    from engine.layers import ACTIVATIONS

    function, each = ACTIVATIONS[name], Invariant().each  # type: ignore[index]
    x = torch.randn(3, PIECE // 2 + 5, generator=torch.Generator().manual_seed(0))
    whole = each(function, x)
    assert whole.shape == x.shape
    for n in range(1, 40):
        assert torch.equal(each(function, x[0, :n]), whole[0, :n])
    assert not all(torch.equal(function(x[0, :n]), function(x)[0, :n]) for n in range(1, 40))


def test_another_kernel_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny.save_folder(tmp_path / "m", tiny.CASE)
    with pytest.raises(RequestError, match=r"batch-invariant.*use the backend tiled or none.*sdpa"):
        Engine.load(folder, backend="sdpa", batch_invariant=True)
    engine = Engine.load(folder, backend="tiled", batch_invariant=True)
    ids = tiny.CASE_IDS
    assert torch.equal(engine.logits(ids), engine.logits(ids, chunk=7))
