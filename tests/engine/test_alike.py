"""Layers that are alike are one function in a graph, and layers that differ in anything are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.compiled_candidate import graphs_as_they_are
from engine import spec
from engine.backends import eager
from engine.cache import ContiguousCache
from engine.compiled import MOST_KINDS, CompiledDecoder
from engine.decoder import Decoder
from engine.families import read_spec
from engine.spec import LayerSpec, ModelSpec
from tests.conformance.tiny_families import CONFIGS
from tests.engine.tiny import filled

Change = Callable[[LayerSpec], LayerSpec]
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
PROMPT = 4  # tokens of them


def attn(**fields: Any) -> Change:
    return lambda layer: replace(layer, attn=replace(layer.attn, **fields))


def rope(**fields: Any) -> Change:
    return lambda layer: attn(rope=replace(layer.attn.rope, **fields))(layer)  # type: ignore[type-var]


def mlp(**fields: Any) -> Change:
    return lambda layer: replace(layer, mlp=replace(layer.mlp, **fields))


def router(**fields: Any) -> Change:
    return lambda layer: mlp(router=replace(layer.mlp.router, **fields))(layer)  # type: ignore[union-attr]


def norm(kind: spec.Norm) -> Change:
    return lambda layer: replace(layer, pre_attn_norm=kind)


def scaled(factor: float) -> Change:
    return lambda layer: replace(layer, post_attn_norm=spec.Scale(factor))


#: What makes some layers other ones than the rest. Two that differ from each other alone, where the
#: first layer has nothing of the kind.
CHANGES: dict[str, tuple[str, *tuple[Change, ...]]] = {
    "nothing": ("llama", lambda layer: layer),
    "theta": ("llama", rope(theta=77.0)),
    "magnitude": ("llama", rope(magnitude=1.5)),
    "rope-scaling": ("llama", rope(scaling=spec.LinearScaling(3.0))),
    "interleaved": ("llama", rope(interleaved=True)),
    "scale": ("llama", attn(scale=1.25)),
    "softcap": ("llama", attn(softcap=0.5), attn(softcap=0.7)),
    "window": ("llama", attn(window=3), attn(window=4)),
    "sinks": ("llama", attn(sinks=True)),
    "bias": ("llama", attn(out_bias=True)),
    "eps": ("llama", norm(spec.RMSNorm(0.7))),
    "one-plus-weight": ("llama", norm(spec.RMSNorm(1e-6, True, True))),
    "layer-norm": ("llama", norm(spec.LayerNorm(0.1)), norm(spec.LayerNorm(0.2))),
    "residual": ("llama", scaled(0.3), scaled(0.4)),
    "activation": ("llama", mlp(activation="relu")),
    "top-k": ("mixtral", mlp(top_k=1)),
    "clamped": (
        "mixtral",
        mlp(activation=spec.ClampedSwiGLU(0.1, 1.7)),
        mlp(activation=spec.ClampedSwiGLU(0.2, 1.7)),
    ),
    "score": ("mixtral", router(score="sigmoid")),
    "router-scale": ("mixtral", router(scale=2.5), router(scale=0.5)),
}


def model_of(family: str, *changes: Change) -> ModelSpec:
    """Four layers, of which every second one is a changed one."""
    base = read_spec(CONFIGS[family] | {"model_type": family})[1]
    layer = base.layers[0]
    first, second = changes[0](layer), changes[-1](layer)
    return replace(base, layers=(layer, first, layer, second))


@torch.inference_mode()
def stepwise(decoder: Decoder) -> torch.Tensor:
    """Logits of the tokens after the prompt, each in a step of its own."""
    made = filled(decoder)
    made.logits.weight = made.embed.weight if made.spec.tied_head else made.logits.weight
    cache = ContiguousCache(made.spec, IDS.shape[1])
    made(IDS[:, :PROMPT], cache)
    return torch.cat([made(IDS[:, [t]], cache) for t in range(PROMPT, IDS.shape[1])], 1)


@pytest.mark.parametrize(("family", "changes"), [(f, c) for f, *c in CHANGES.values()], ids=CHANGES)
def test_layers_that_differ_are_not_taken_for_alike(family: str, changes: list[Change]) -> None:
    model = model_of(family, *changes)
    torch.compiler.reset()
    with graphs_as_they_are() as graphs:
        steps = stepwise(CompiledDecoder(model, eager.attend))
    torch.compiler.reset()
    torch.testing.assert_close(steps, stepwise(Decoder(model, eager.attend)), atol=1e-4, rtol=0)
    (graph,) = graphs
    # Those that differ in the tables of their ropes alone have the same code, which is kept once.
    assert 1 <= len(list(graph.children())) <= len(set(model.layers))


@pytest.mark.parametrize("kinds", [MOST_KINDS, MOST_KINDS + 1])
def test_more_kinds_than_torch_allows_are_part_of_the_graph(kinds: int) -> None:
    """As in GPT-2's whose scores are divided by the layer's number."""
    base = read_spec(CONFIGS["llama"] | {"model_type": "llama"})[1]
    layers = tuple(attn(scale=1 / (1 + i))(base.layers[0]) for i in range(kinds))
    model = replace(base, layers=layers)
    torch.compiler.reset()
    with graphs_as_they_are() as graphs:
        steps = stepwise(CompiledDecoder(model, eager.attend))
    torch.compiler.reset()
    torch.testing.assert_close(steps, stepwise(Decoder(model, eager.attend)), atol=1e-4, rtol=0)
    assert len(list(graphs[0].children())) == (kinds if kinds <= MOST_KINDS else 0)
