"""Masks from positions, and every backend against a plain twin: groups, softcaps, sinks, values of any width."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.backends import BACKENDS, Kernel, backend, eager, sdpa
from engine.backends.tiled import Tiled
from engine.errors import RequestError
from engine.families import read_spec
from engine.mask import View, visible
from engine.probe import Probe
from tests.engine import tiny
from tests.engine.test_cache import LLAMA_3_8B
from tests.engine.zoo import ATTENTION, LAYER, ZOO, model

positions = st.lists(st.integers(0, 20), min_size=1, max_size=6)


class Scores:
    """Stands in for the attention that calls a backend: how scores are formed, and the probes."""

    def __init__(
        self, scale: float, softcap: float | None = None, sinks: Tensor | None = None
    ) -> None:
        self.scale, self.softcap, self.sinks = scale, softcap, sinks
        self.scores, self.weights, self.context = Probe(), Probe(), Probe()


def view(old: int, new: int, window: int | None = None, batch: int = 1) -> View:
    """What `new` tokens after `old` ones see of all of them."""
    q_pos, k_pos = torch.arange(old, old + new), torch.arange(old + new)
    return View(q_pos.expand(batch, -1), k_pos.expand(batch, -1), window)


@given(
    q_pos=positions,
    k_pos=st.lists(st.integers(-1, 20), min_size=1, max_size=8),
    window=st.none() | st.integers(1, 21),
)
def test_the_mask_is_what_its_definition_says(
    q_pos: list[int], k_pos: list[int], window: int | None
) -> None:
    """Any positions: chunks that start anywhere, slots without a token (-1), any order."""
    got = visible(torch.tensor(q_pos)[:, None], torch.tensor(k_pos)[None, :], window)
    first = 21 if window is None else window
    assert got.tolist() == [[0 <= k <= q and q - k < first for k in k_pos] for q in q_pos]


@pytest.mark.parametrize(
    ("window", "seen"), [(None, [6, 7, 8]), (1, [1, 1, 1]), (7, [6, 7, 7]), (8, [6, 7, 8])]
)
def test_query_i_of_a_chunk_at_p_sees_keys_up_to_p_plus_i(
    window: int | None, seen: list[int]
) -> None:
    """`tril` with the cache's length as its diagonal shows the chunk's future; a window counts itself."""
    p, T = 5, 3
    got = visible(torch.arange(p, p + T)[:, None], torch.arange(p + T)[None, :], window)
    assert got.sum(-1).tolist() == seen


def plain(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scores) -> Tensor:
    """Attention one query head and one token at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    cap = attn.softcap
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                keys = [s for s in range(k.shape[2]) if view.visible[b, 0, t, s]]
                scores = [float(q[b, h, t] @ k[b, h // group, s]) * attn.scale for s in keys]
                weights = [math.exp(s if cap is None else cap * math.tanh(s / cap)) for s in scores]
                sink = 0.0 if attn.sinks is None else math.exp(float(attn.sinks[h]))
                for s, w in zip(keys, weights, strict=True):
                    out[b, h, t] += w / (sum(weights) + sink) * v[b, h // group, s]
    return out


def agrees(
    kernel: Kernel, shape: tuple[int, ...], window: int | None, seed: int, attn: Scores
) -> bool:
    """Whether the kernel gives what the twin gives, on random q, k and v of these sizes."""
    batch, kv_heads, group, new, old, dim, width = shape
    rng = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, kv_heads * group, new, dim, generator=rng)
    k = torch.randn(batch, kv_heads, old + new, dim, generator=rng)
    v = torch.randn(batch, kv_heads, old + new, width, generator=rng)
    seen = view(old, new, window, batch)
    got = kernel(q, k, v, seen, attn)
    return got.shape == (*q.shape[:3], width) and bool(
        (got - plain(q, k, v, seen, attn)).abs().max() < 1e-5
    )


SHAPES = st.tuples(
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from([2, 6, 8]),
    st.sampled_from([2, 3, 8]),
)
WINDOWS = st.none() | st.integers(1, 6)
SEEDS = st.integers(0, 10**6)


def sdpa_slice_by_slice(q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scores) -> Tensor:
    """Two queries at a time, each pair with the keys that it sees."""
    with patch.object(sdpa, "QUERIES", 2):
        return sdpa.attend(q, k, v, view, attn)


#: With tiles that even a few tokens fill.
SMALL_TILES = Tiled(queries=2, keys=3)
KERNELS: dict[str, Kernel] = {name: known.attend for name, known in BACKENDS.items()}
KERNELS["small tiles"] = SMALL_TILES
KERNELS["sdpa, slice by slice"] = sdpa_slice_by_slice
#: It is compiled anew for each size of heads; test_backends has it on models.
del KERNELS["flex"]


@pytest.mark.parametrize("name", list(KERNELS))
@tiny.examples(30)
@given(shape=SHAPES, window=WINDOWS, seed=SEEDS, scale=st.floats(0.1, 1.5))
def test_backends_equal_the_plain_twin(
    name: str, shape: tuple[int, ...], window: int | None, seed: int, scale: float
) -> None:
    """Query heads h * group ... share key/value head h; tiling instead of repeating is the usual bug."""
    assert agrees(KERNELS[name], shape, window, seed, Scores(scale))


@tiny.examples(30)
@given(
    shape=SHAPES,
    window=WINDOWS,
    seed=SEEDS,
    softcap=st.none() | st.floats(0.5, 5),
    sinks=st.none() | st.lists(st.floats(-3, 3), min_size=9, max_size=9),
)
def test_softcaps_and_sinks_equal_the_plain_twin(
    shape: tuple[int, ...],
    window: int | None,
    seed: int,
    softcap: float | None,
    sinks: list[float] | None,
) -> None:
    """The cap is before the mask, which a cap of minus infinity would undo; each head has its own sink."""
    heads = shape[1] * shape[2]
    given_sinks = None if sinks is None else torch.tensor(sinks[:heads])
    for kernel in (eager.attend, SMALL_TILES):
        assert agrees(kernel, shape, window, seed, Scores(1.0, softcap, given_sinks))


def test_an_unknown_backend_is_refused_with_the_list_of_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"'flashy'.*eager, tiled, sdpa, flash, flex"):
        backend("flashy", ZOO["plain"])


@pytest.mark.parametrize("change", [{"softcap": 2.0}, {"sinks": True}], ids=["softcap", "sinks"])
def test_a_kernel_that_cannot_form_the_scores_is_neither_chosen_nor_taken(
    change: dict[str, object],
) -> None:
    """One layer is enough: sdpa would leave the cap or the sink out, and say nothing."""
    spec = model(LAYER, replace(LAYER, attn=replace(ATTENTION, **change)))
    assert backend(None, spec) is eager.attend
    assert backend(None, model(LAYER)) is sdpa.attend
    for name in ("sdpa", "flash"):
        sentence = rf"{name} has no {next(iter(change))}, which.*; use eager, tiled, flex$"
        with pytest.raises(RequestError, match=sentence):
            backend(name, spec)


def test_scores_of_2048_tokens_and_32_heads_take_256_mib_in_float16() -> None:
    """Not 512: shapes alone, on torch's meta device."""
    _, spec = read_spec(LLAMA_3_8B)
    attn = spec.layers[0].attn
    q = torch.empty(1, attn.n_heads, 2048, attn.head_dim, dtype=torch.float16, device="meta")
    k = torch.empty(1, attn.n_kv_heads, 2048, attn.head_dim, dtype=torch.float16, device="meta")
    positions = torch.empty(1, 2048, dtype=torch.int64, device="meta")
    seen = View(positions, positions, None)
    scores = Scores(attn.scale)
    sizes: list[int] = []
    scores.scores.register_forward_hook(lambda module, args, value: sizes.append(value.nbytes))
    eager.attend(q, k, k, seen, scores)
    assert sizes == [256 * 2**20]
