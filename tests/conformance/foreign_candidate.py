"""The adapter for an engine that is a plain nn.Module: forward hooks are its probes, nothing is rewritten."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conformance.candidate import Candidate, Level, Location, Tap
from tests.conformance.foreign import ForeignLlama


def candidates(model: Path, device: str, dtype: str) -> list[ForeignCandidate]:
    return [ForeignCandidate(ForeignLlama(model, device, getattr(torch, dtype)))]


class ForeignCandidate(Candidate):
    name = "foreign llama"
    level = Level.L5
    lacks = ("*.attn.[qkv]", "*.attn.scores", "*.attn.weights", "*.mlp.gate", "*.mlp.up")

    def __init__(self, model: ForeignLlama) -> None:
        self.model = model
        self._operations: dict[str, nn.Module] = {}
        self._hook(model.embed, partial(self._show, "embed"))
        previous = None  # the probe of the sum that the next norm makes
        for i, layer in enumerate(model.layers):
            at, cache = f"layers.{i}.", f"cache.layers.{i}."
            self._hook(layer.norm_1, self._add_norm(previous, at + "pre_attn_norm"))
            self._hook(layer.rotary, self._heads(at + "attn.q_rope", at + "attn.k_rope"))
            self._hook(layer.store, self._buffers(cache + "k", cache + "v"))
            self._hook(layer.attend, self._heads(at + "attn.context"))
            self._hook(layer.o, partial(self._show, at + "attn.out"))
            self._hook(layer.norm_2, self._add_norm(at + "after_attn", at + "pre_mlp_norm"))
            self._hook(layer.act, partial(self._show, at + "mlp.act"))
            self._hook(layer.down, partial(self._show, at + "mlp.down"))
            previous = at + "out"
        self._hook(model.norm, self._add_norm(previous, "final_norm"))
        self._hook(model.head, partial(self._show, "logits"))

    def begin(self, capacity: int) -> None:
        self.model.reset(capacity)

    def step(self, ids: Tensor, tap: Tap) -> None:
        self.tap = tap
        self.model(ids.to(self.model.embed.weight.device))

    def locate(self, probe: str) -> Location | None:
        kind = type(self._operations[probe])
        return Location(inspect.getfile(kind), inspect.getsourcelines(kind)[1])

    def greedy(self, ids: list[int], max_tokens: int) -> list[int]:
        self.tap = lambda _probe, value: value
        return self.model.generate(ids, max_tokens)

    def _hook(self, module: nn.Module, show: Callable[[nn.Module, Any], Any]) -> None:
        module.register_forward_hook(lambda module, _arguments, output: show(module, output))

    def _show(self, probe: str, module: nn.Module, value: Tensor) -> Tensor:
        """A value [T, ...] to the tap, which wants a batch axis, and what it hands on."""
        self._operations[probe] = module
        return self.tap(probe, value[None])[0]

    def _heads(self, *probes: str) -> Callable[[nn.Module, Any], Any]:
        """Values [T, heads, D]; the tap wants [heads, T, D]."""

        def show(module: nn.Module, output: Any) -> Any:
            values = output if isinstance(output, tuple) else (output,)
            pairs = zip(probes, values, strict=True)
            shown = [self._show(p, module, x.transpose(0, 1)).transpose(0, 1) for p, x in pairs]
            return tuple(shown) if isinstance(output, tuple) else shown[0]

        return show

    def _buffers(self, *probes: str) -> Callable[[nn.Module, Any], None]:
        """Views of the cache [S, K, D]: what is handed on is written where they lie."""

        def show(module: nn.Module, views: tuple[Tensor, Tensor]) -> None:
            for view, handed in zip(views, self._heads(*probes)(module, views), strict=True):
                view.copy_(handed)

        return show

    def _add_norm(self, total: str | None, normed: str) -> Callable[[nn.Module, Any], Any]:
        """A sum and its norm in one operation: the norm is made again if another sum is handed on."""

        def show(module: Any, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            x, residual = output
            if total is not None:
                handed = self._show(total, module, residual)
                x, residual = module.forward(torch.zeros_like(x), handed)
            return self._show(normed, module, x), residual

        return show
