"""Masks from positions, grouped heads, and the two backends against a plain twin."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention import causal
from engine.backends import BACKENDS, backend
from engine.errors import RequestError
from engine.families import read_spec
from engine.probe import Probe
from tests.engine import tiny
from tests.engine.test_cache import LLAMA_3_8B

positions = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(q_pos=positions, k_pos=st.lists(st.integers(-1, 20), min_size=1, max_size=8))
def test_the_mask_is_what_its_definition_says(q_pos: list[int], k_pos: list[int]) -> None:
    """Any positions: chunks that start anywhere, slots without a token (-1), any order."""
    got = causal(torch.tensor(q_pos)[:, None], torch.tensor(k_pos)[None, :])
    assert got.tolist() == [[0 <= k <= q for k in k_pos] for q in q_pos]


def test_query_i_of_a_chunk_at_p_sees_keys_up_to_p_plus_i() -> None:
    """`tril` with the cache's length as its diagonal shows the chunk's future."""
    p, T = 5, 3
    seen = causal(torch.arange(p, p + T)[:, None], torch.arange(p + T)[None, :])
    assert seen.sum(-1).tolist() == [p + i + 1 for i in range(T)]


def plain(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Attention one query head and one token at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                keys = [s for s in range(k.shape[2]) if visible[t, s]]
                scores = [float(q[b, h, t] @ k[b, h // group, s]) * scale for s in keys]
                weights = [math.exp(s - max(scores)) for s in scores]
                for s, w in zip(keys, weights, strict=True):
                    out[b, h, t] += w / sum(weights) * v[b, h // group, s]
    return out


@pytest.mark.parametrize("name", list(BACKENDS))
@tiny.examples(30)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    new=st.integers(1, 4),
    old=st.integers(0, 5),
    batch=st.integers(1, 2),
    dim=st.sampled_from([2, 6, 8]),
    seed=st.integers(0, 10**6),
)
def test_backends_equal_the_plain_twin(
    name: str, kv_heads: int, group: int, new: int, old: int, batch: int, dim: int, seed: int
) -> None:
    """Query heads h * group ... share key/value head h; tiling instead of repeating is the usual bug."""
    rng = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, kv_heads * group, new, dim, generator=rng)
    k = torch.randn(batch, kv_heads, old + new, dim, generator=rng)
    v = torch.randn(batch, kv_heads, old + new, dim, generator=rng)
    visible = causal(torch.arange(old, old + new)[:, None], torch.arange(old + new)[None, :])
    scale = dim**-0.5
    got = backend(name)(q, k, v, visible, scale, Probe(), Probe(), Probe())
    assert got.shape == q.shape
    assert (got - plain(q, k, v, visible, scale)).abs().max() < 1e-5


def test_an_unknown_backend_is_refused_with_the_list_of_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"'flashy'.*eager, sdpa"):
        backend("flashy")


def test_scores_of_2048_tokens_and_32_heads_take_256_mib_in_float16() -> None:
    """Not 512: shapes alone, on torch's meta device."""
    _, spec = read_spec(LLAMA_3_8B)
    attn = spec.layers[0].attn
    q = torch.empty(1, attn.n_heads, 2048, attn.head_dim, dtype=torch.float16, device="meta")
    k = torch.empty(1, attn.n_kv_heads, 2048, attn.head_dim, dtype=torch.float16, device="meta")
    visible = torch.empty(2048, 2048, dtype=torch.bool, device="meta")
    scores = Probe()
    sizes: list[int] = []
    scores.register_forward_hook(lambda module, args, value: sizes.append(value.nbytes))
    backend("eager")(q, k, k, visible, attn.scale, scores, Probe(), Probe())
    assert sizes == [256 * 2**20]
