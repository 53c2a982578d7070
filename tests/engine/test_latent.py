"""Latent attention against a plain twin that never forms a latent's projection as one product."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine import spec
from engine.attention import LatentAttention, Step, attention
from engine.backends import BACKENDS, eager
from engine.cache import ContiguousCache
from engine.errors import ModelFileError
from engine.mask import View
from engine.probe import attached
from engine.rope import Rotations
from tests.engine import tiny
from tests.engine.zoo import LAYER, model

DIM = 10
NORM = spec.RMSNorm(1e-3)


def run(layer: LatentAttention, attn: spec.LatentAttention, x: Tensor, steps: list[int]) -> Tensor:
    """The layer's results [B, T, dim] for x in chunks of these sizes."""
    cache = ContiguousCache(model(replace(LAYER, attn=attn)), x.shape[1], batch=len(x))
    rotations = Rotations([attn.rope], "cpu")
    parts = []
    for part in x.split(steps, dim=1):
        groups = cache.extend(cache.rows(part.shape[:2]))
        positions = groups[0].q_pos
        views = [{None: View(positions, groups[0].reaches[None].k_pos, None)}]
        tables = rotations(positions[:, None], groups[0].read_as[:, None], torch.float32)
        step = Step(positions, groups, views, tables)
        parts.append(layer(part, step, cache.layers[0]))
    return torch.cat(parts, dim=1)


class Twin:
    """One token, one head and one pair at a time, in float64; a rotation is a product of complex numbers."""

    def __init__(self, layer: LatentAttention, attn: spec.LatentAttention, x: Tensor) -> None:
        self.attn, self.x = attn, x.double()
        self.of = {name: p.double() for name, p in layer.named_parameters()}

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.of[f"{name}.weight"] @ x
        return y + self.of[f"{name}.bias"] if f"{name}.bias" in self.of else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x / (x.square().mean() + 1e-3).sqrt() * self.of[f"{name}.weight"]

    def turned(self, x: Tensor, position: int) -> list[complex]:
        """The pairs (2j, 2j + 1) as complex numbers, each turned by its angle."""
        rope = self.attn.rope
        angles = (position * rope.theta ** (-2 * j / rope.dim) for j in range(rope.dim // 2))
        pairs = zip(x[0::2].tolist(), x[1::2].tolist(), angles, strict=True)
        return [complex(a, b) * complex(math.cos(o), math.sin(o)) for a, b, o in pairs]

    def query(self, t: int, h: int) -> tuple[Tensor, list[complex]]:
        q = self.x[t]
        if self.attn.q_rank is not None:
            q = self.norm("q_norm", self.linear("q_down", q))
        nope, size = self.attn.nope_dim, self.attn.nope_dim + self.attn.rope_dim
        rows = self.linear("q", q)[h * size : (h + 1) * size]
        return rows[:nope], self.turned(rows[nope:], t)

    def key_value(self, s: int, h: int) -> tuple[Tensor, list[complex], Tensor]:
        latent = self.norm("kv_norm", self.linear("kv_down", self.x[s]))
        nope, size = self.attn.nope_dim, self.attn.nope_dim + self.attn.v_dim
        rows = self.linear("kv_up", latent)[h * size : (h + 1) * size]
        return rows[:nope], self.turned(self.linear("k", self.x[s]), s), rows[nope:]

    def __call__(self, t: int) -> Tensor:
        """What attention gives for token t of the one row of x [T, dim]."""
        heads = []
        for h in range(self.attn.n_heads):
            q, q_turned = self.query(t, h)
            keys = [self.key_value(s, h) for s in range(t + 1)]
            weights = []
            for k, k_turned, _ in keys:
                pairs = zip(q_turned, k_turned, strict=True)
                score = float(q @ k) + sum((a * b.conjugate()).real for a, b in pairs)
                weights.append(math.exp(score * self.attn.scale))
            mixed = zip(weights, keys, strict=True)
            heads.append(sum(w / sum(weights) * v for w, (_, _, v) in mixed))
        return self.linear("out", torch.cat(heads))


@pytest.mark.parametrize("backend", ["eager", "tiled", "sdpa", "flash"])
@tiny.examples(20)
@given(
    heads=st.integers(1, 3),
    q_rank=st.none() | st.integers(1, 6),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 2), st.integers(1, 5)),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_it_equals_the_plain_twin(
    backend: str,
    heads: int,
    q_rank: int | None,
    sizes: tuple[int, int, int],
    bias: bool,
    seed: int,
) -> None:
    """In one pass, and in chunks that read latents and turned keys of earlier tokens from the cache."""
    nope, pairs, v_dim = sizes
    rope = spec.Rope(2 * pairs, 50.0, interleaved=True)
    attn = spec.LatentAttention(heads, q_rank, 5, nope, 2 * pairs, v_dim, 0.7, rope, NORM, bias)
    layer = attention(DIM, attn, BACKENDS[backend].attend)
    assert isinstance(layer, LatentAttention)
    tiny.filled(layer, seed)
    x = torch.randn(1, 5, DIM, generator=torch.Generator().manual_seed(seed))
    want = torch.stack([Twin(layer, attn, x[0])(t) for t in range(5)])
    for steps in ([5], [3, 1, 1]):
        assert (run(layer, attn, x, steps)[0] - want).abs().max() < 1e-4


def test_the_cache_keeps_one_latent_and_one_turned_key_per_token() -> None:
    """That is what latent attention is for: a cache of kv_rank + rope_dim numbers, however many heads."""
    rope = spec.Rope(4, 50.0, interleaved=True)
    attn = spec.LatentAttention(3, None, 5, 2, 4, 6, 0.7, rope, NORM)
    assert dict(attn.cached) == {"latent": (1, 5), "k_rope": (1, 4)}
    layer = tiny.filled(attention(DIM, attn, eager.attend))
    shapes: dict[str, tuple[int, ...]] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        shapes[probe] = tuple(value.shape)
        return value

    assert isinstance(layer, LatentAttention)
    with attached(keep, ("", layer)):
        run(layer, attn, torch.randn(2, 7, DIM), [6, 1])
    assert shapes["q"] == (2, 3, 1, 6)
    assert shapes["k_rope"] == (2, 1, 1, 4)
    assert shapes["kv_up"] == (2, 3, 7, 8)
    assert shapes["context"] == (2, 3, 1, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_rank": 0}, "latent attention needs positive sizes"),
        ({"q_rank": 0}, "q_lora_rank must be positive"),
        ({"rope_dim": 6}, "rope turns 4, not 6"),
        ({"scale": math.inf}, "softmax scale must be finite, got inf"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, float], message: str) -> None:
    sizes = {"n_heads": 3, "q_rank": 2, "kv_rank": 5, "nope_dim": 2, "rope_dim": 4, "v_dim": 6}
    given_sizes = {**sizes, "scale": 0.7, **change}
    with pytest.raises(ModelFileError, match=message):
        spec.LatentAttention(rope=spec.Rope(4, 50.0), latent_norm=NORM, **given_sizes)
