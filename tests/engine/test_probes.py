"""Probes: all of design's names in order, values that can be replaced, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.cache import ContiguousCache
from engine.decoder import Decoder
from engine.probe import Probe, attached, probes
from tests.engine import tiny
from tests.engine.zoo import ZOO

EAGER_ONLY = ("scores", "weights")


def names(n_layers: int, *, eager: bool) -> list[str]:
    """The names of one pass of a llama, in the order in which they are computed."""

    def layer(i: int) -> Iterator[str]:
        yield "pre_attn_norm"
        yield from ("attn.q", "attn.k", "attn.v", "attn.q_rope", "attn.k_rope")
        yield from (f"cache.layers.{i}.k", f"cache.layers.{i}.v")
        if eager:
            yield from ("attn.scores", "attn.weights")
        yield from ("attn.context", "attn.out", "after_attn")
        yield from ("pre_mlp_norm", "mlp.gate", "mlp.up", "mlp.act", "mlp.down", "out")

    inner = [
        name if name.startswith("cache.") else f"layers.{i}.{name}"
        for i in range(n_layers)
        for name in layer(i)
    ]
    return ["embed", *inner, "final_norm", "logits"]


def run(model: Decoder, tap: object = None) -> Tensor:
    cache = ContiguousCache(model.spec, 7)
    if tap is None:
        return tiny.logits(model, tiny.CASE_IDS[:7], cache=cache)
    assert callable(tap)
    with attached(tap, ("", model), ("cache", cache)):
        return tiny.logits(model, tiny.CASE_IDS[:7], cache=cache)


def blocks() -> dict[str, tuple[str, ...]]:
    """A last layer's operations of every kind of block, as other engines and goldens know them."""
    norms = ("pre_attn_norm", "pre_mlp_norm")
    qkv, rope = ("q", "k", "v"), ("q_rope", "k_rope")
    scored, dense = ("scores", "weights", "context", "out"), ("gate", "up", "act", "down")
    routed = ("router_logits", "expert_ids", "expert_weights", "experts")
    kept = ("cache.k", "cache.v")

    def names(attn: tuple[str, ...], mlp: tuple[str, ...], *around: str) -> tuple[str, ...]:
        inner = (f"attn.{n}" if "." not in n else n for n in (*attn, *scored))
        return (*inner, *(f"mlp.{n}" for n in mlp), "after_attn", "out", *around)

    plain = (*qkv, *rope, *kept)
    latent = ("q_down", "q_norm", "q", "kv_down", "kv_norm", "k", *rope)
    return {
        "plain": names(plain, dense, *norms),
        "windows": names(plain, dense, *norms, "post_attn_norm", "post_mlp_norm"),
        "sinks": names(plain, (*routed, "out"), *norms),
        "latent": names(
            (*latent, "cache.latent", "cache.k_rope", "kv_up"),
            (*routed, *(f"shared.{n}" for n in dense), "out"),
            *norms,
        ),
        "learned": names((*qkv, *kept), ("up", "act", "down"), *norms),
        "after": names((*plain, "q_norm", "k_norm"), dense, "post_attn_norm", "post_mlp_norm"),
        "scaled": names((*qkv, *kept, "q_norm", "k_norm"), dense, *norms),
    }


@pytest.mark.parametrize(("kind", "block"), blocks().items(), ids=blocks())
def test_a_block_has_the_probes_of_what_it_is_made_of(kind: str, block: tuple[str, ...]) -> None:
    """A norm that is absent has none, and neither has a constant factor or a layer without rope."""
    seen: list[str] = []

    def look(probe: str, value: Tensor) -> Tensor:
        seen.append(probe)
        return value

    spec = ZOO[kind]
    model = tiny.decoder_of(spec)
    cache = ContiguousCache(spec, 3)
    with attached(look, ("", model), ("cache", cache)):
        tiny.logits(model, [1, 2, 3], cache=cache)
    last = f"layers.{spec.n_layers - 1}."
    mine = [n.replace(last, "") for n in seen if last in n]
    assert sorted(mine) == sorted(block)
    assert len(set(seen)) == len(seen)
    assert (seen[0], seen[-2:]) == ("embed", ["final_norm", "logits"])


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_every_operation_shows_itself_once_and_in_order(backend: str) -> None:
    seen: list[str] = []

    def look(probe: str, value: Tensor) -> Tensor:
        seen.append(probe)
        return value

    run(tiny.decoder(tiny.CASE, backend), look)
    in_order = names(2, eager=backend == "eager")
    # The three projections do not depend on each other, nor do their rotations.
    assert sorted(seen) == sorted(in_order)
    stages = [n.split(".")[-1].removesuffix("_rope") in "qkv" and "cache" not in n for n in seen]
    assert [n for n, free in zip(seen, stages, strict=True) if not free] == [
        n
        for n in in_order
        if not (n.split(".")[-1].removesuffix("_rope") in "qkv" and "cache" not in n)
    ]


def test_shapes_are_the_documented_ones() -> None:
    shapes: dict[str, tuple[int, ...]] = {}

    def look(probe: str, value: Tensor) -> Tensor:
        shapes[probe] = tuple(value.shape)
        return value

    run(tiny.decoder(tiny.CASE), look)
    B, T, S, H, K, D, dim, ffn, V = 1, 7, 7, 4, 2, 8, 32, 48, 50
    expected = {
        "embed": (B, T, dim),
        "layers.1.attn.q": (B, H, T, D),
        "layers.1.attn.k_rope": (B, K, T, D),
        "cache.layers.1.v": (B, K, S, D),
        "layers.1.attn.scores": (B, H, T, S),
        "layers.1.attn.weights": (B, H, T, S),
        "layers.1.attn.context": (B, H, T, D),
        "layers.1.attn.out": (B, T, dim),
        "layers.1.mlp.act": (B, T, ffn),
        "layers.1.out": (B, T, dim),
        "final_norm": (B, T, dim),
        "logits": (B, T, V),
    }
    assert {name: shapes[name] for name in expected} == expected


@pytest.mark.parametrize("name", names(2, eager=True)[:-1])
def test_what_a_tap_returns_is_what_the_decoder_goes_on_with(name: str) -> None:
    """Lockstep runs hand the golden's value on; a probe whose result is dropped would not let them."""
    model = tiny.decoder(tiny.CASE)
    before = run(model)

    def replace(probe: str, value: Tensor) -> Tensor:
        return value.roll(1, -1) if probe == name else value

    assert (run(model, replace) - before).abs().max() > 1e-3
    assert torch.equal(run(model), before), "detached, the model is as it was"


def test_replaced_logits_are_the_result() -> None:
    model = tiny.decoder(tiny.CASE)
    tapped = run(model, lambda probe, value: value * 0 if probe == "logits" else value)
    assert not tapped.any()


def test_nothing_stays_attached_when_the_tap_fails() -> None:
    model = tiny.decoder(tiny.CASE)

    def fail(probe: str, value: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(model, fail)
    assert not any(probe._forward_hooks for probe in probes(model).values())


def test_a_probe_returns_the_very_tensor() -> None:
    value = torch.randn(3)
    assert Probe()(value) is value


def test_weights_are_the_softmax_of_scores_and_masked_ones_are_minus_infinity() -> None:
    seen: dict[str, Tensor] = {}

    def keep(probe: str, value: Tensor) -> Tensor:
        seen[probe] = value
        return value

    run(tiny.decoder(tiny.CASE), keep)
    scores, weights = seen["layers.0.attn.scores"], seen["layers.0.attn.weights"]
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert (scores[..., future] == -torch.inf).all()
    assert scores[..., ~future].isfinite().all()
    assert torch.equal(weights, scores.softmax(-1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_decode_step_compiles_as_one_graph(backend: str) -> None:
    """Unattached probes disappear: fullgraph raises at the first thing that would break the graph."""
    model = tiny.decoder({**tiny.CASE, "num_hidden_layers": 1}, backend)
    compiled = torch.compile(model.run, fullgraph=True, backend="eager")
    prompt, new = torch.tensor([[3, 7, 11]]), torch.tensor([[2]])
    results = []
    with torch.inference_mode():
        for run in (model.run, compiled):
            cache = ContiguousCache(model.spec, 8)
            model(prompt, cache)
            step = model.step(cache.extend(cache.rows(new.shape)))
            results.append(run(new, step, cache.layers))
    assert torch.equal(*results)
