"""Decoding compiled: one token of each of several sequences as one graph of a fixed shape.

The graph is `Decoder.run` itself. What makes it fast on a CPU is that a map of few rows is written as
sums of products: the compiler then writes one loop over the weights, as they lie in memory, for all maps
that read the same input, and all layers of a kind become one function. Nothing is packed or copied,
so that weights stay mapped to their file (measured: docs/measurements/bench.md).

A graph is compiled when its shape first comes, for a number of rows and a number of keys out of a few
(`ROWS`, `Layout.bucket`), and kept on disk for later starts. Passes of several tokens run as they do
without it, as do all passes while a probe is watched: graphs have no probes.

What is in a graph is told by `is_dynamo_compiling`, which is true for the code that is being captured and
for no other: `is_compiling` is true in all threads of a process while one of them compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from engine.arithmetic import Arithmetic, Computing
from engine.attention import Step
from engine.backends import Kernel, eager, sdpa, single, supports
from engine.backends.scored import Scored
from engine.cache import Cache, LayerCache, Part, bucket
from engine.decoder import Block, Decoder
from engine.errors import LockstepError, RequestError
from engine.linear import are_sums, linear, sums_of_products
from engine.mask import PLAIN, Custom, View
from engine.models import cache_dir
from engine.probe import watched
from engine.progress import busy
from engine.quantised import Weight
from engine.spec import ModelSpec

#: Numbers of sequences that graphs are made for: a step is computed in the next larger one.
ROWS = (1, 2, 4, 8, 16, 32)
GRAPHS = 256  # of all models and shapes in a process
MOST_KINDS = 8  # of layers in a graph: torch takes more of them for a mistake


class SumsOfFewRows(Arithmetic):
    """In a graph, maps of few rows as sums of products, in float32 whatever the dtype of the weights."""

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if not (torch.compiler.is_dynamo_compiling() and are_sums(rows, weight)):
            return linear(x, weight, bias)
        done = sums_of_products(rows, weight)
        return (done if bias is None else done + bias).view(*x.shape[:-1], -1)


SUMS_OF_FEW_ROWS = SumsOfFewRows()


class InGraphs:
    """The kernel `otherwise`, but in a graph one that is told by positions alone what a query sees."""

    def __init__(self, in_graphs: Kernel, otherwise: Kernel) -> None:
        self.in_graphs, self.otherwise = in_graphs, otherwise

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, view: View, attn: Scored) -> Tensor:
        kernel = self.in_graphs if torch.compiler.is_dynamo_compiling() else self.otherwise
        return kernel(q, k, v, view, attn)


class AlikeBlock(Block):
    """A layer that is one function, in a graph, with all layers of its kind."""

    kind = -1  # the first layer that has the same spec

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        # torch compares what is looked at, but no two ropes that it has met before, as keys of a step.
        # No assertion: those can be switched off.
        if self.kind < 0:
            raise LockstepError("a layer that is to be compiled has no kind")
        return super().forward(x, step, cache)


class CompiledDecoder(Decoder):
    """A decoder whose passes of one token of each sequence are compiled."""

    def __init__(
        self,
        model: ModelSpec,
        backend: Kernel,
        device: torch.device | str = "cpu",
        custom: Custom = PLAIN,
        progress: bool = False,
    ) -> None:
        # Launching a step's kernels one by one would take a GPU longer than running them.
        self._on_cuda = torch.device(device).type == "cuda"
        in_graphs = single.attend
        if self._on_cuda:
            in_graphs = sdpa.attend if supports("sdpa", model, custom) else eager.attend
        kinds = [model.layers.index(layer) for layer in model.layers]
        alike = not self._on_cuda and len(set(kinds)) <= MOST_KINDS
        block = AlikeBlock if alike else Block
        super().__init__(model, InGraphs(in_graphs, backend), device, custom, block)
        for layer, kind in zip(cast("Iterable[AlikeBlock]", self.layers), kinds, strict=True):
            layer.kind = kind
        for module in self.modules():
            if isinstance(module, Computing):
                module.arithmetic = SUMS_OF_FEW_ROWS
        self.progress = progress
        options: dict[str, Any] = {"guard_filter_fn": _of_what_is_given}
        if self._on_cuda:
            options["triton.cudagraphs"] = True
        self._graph = torch.compile(_run_of(self), fullgraph=True, dynamic=False, options=options)
        self.compiled_steps = 0  # that were run as graphs
        self._seen: set[tuple[int, ...]] = set()

    def use(self, backend: Kernel) -> None:
        """Attention by another kernel from now on, but for graphs."""
        attend = cast("InGraphs", cast("Block", self.layers[0]).attn.attend)
        super().use(InGraphs(attend.in_graphs, backend))

    def forward(
        self,
        ids: Tensor,
        cache: Cache,
        parts: Sequence[Part] | None = None,
        last: int | Sequence[int] | None = None,
        read_as: int | None = None,
    ) -> Tensor:
        parts = parts or cache.rows(ids.shape)
        alike = all(part.n == 1 for part in parts) and len(parts) <= ROWS[-1]
        alike &= last is None or set([last] if isinstance(last, int) else last) == {1}
        if not alike or watched(self) or watched(cache):
            return super().forward(ids, cache, parts, last, read_as)
        rows = next(rows for rows in ROWS if len(parts) <= rows)
        column = ids.view(-1, 1)
        column = torch.cat((column, column[-1:].expand(rows - len(column), 1)))
        step = self.step(cache.extend_bucket(parts, rows, read_as))
        try:
            logits = self._run_graph(column, step, cache)[: len(parts)]
        except LockstepError:
            for part in parts:
                cache.rewind(part.room, part.room.length - 1)
            raise
        return logits.view(len(ids), -1, logits.shape[-1])

    def _run_graph(self, ids: Tensor, step: Step, cache: Cache) -> Tensor:
        """Logits [B, 1, V] of ids [B, 1], compiled now if this is the first step of its shape."""
        (group,) = step.groups
        keys = [reach.k_pos.shape[1] for reach in group.reaches.values()]
        sizes = [n for layout in cache.layouts.values() for n in (layout.banks, layout.slots)]
        shape = (len(ids), *keys, *sizes)
        label = f"compiling a step of {len(ids)} x {max(keys)} keys"
        try:
            with busy(label, show=self.progress and shape not in self._seen):
                logits: Tensor = self._graph(ids, step, cache.layers)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise LockstepError(
                f"a step cannot be compiled: {reason}; load the model without compiled"
            ) from error
        self._seen.add(shape)
        self.compiled_steps += 1
        return logits.clone() if self._on_cuda else logits  # the next step is written in its place


@torch.inference_mode()
def warm(
    decoder: CompiledDecoder, cache: Cache, most: int, progress: Callable[[int], None]
) -> None:
    """Compiles the steps of up to `most` short sequences in a cache that stays, and is as before then.

    `progress` is told of how many each one is, before it is compiled.
    """
    for rows in (rows for fewer, rows in zip((0, *ROWS), ROWS, strict=False) if fewer < most):
        progress(rows)
        parts = [Part(cache.open(1), 1) for _ in range(min(rows, most))]
        try:
            decoder(torch.zeros(1, len(parts), dtype=torch.long, device=cache.device), cache, parts)
        finally:
            for part in parts:
                cache.close(part.room)


def _run_of(decoder: Decoder) -> MethodType:
    """`Decoder.run` of this decoder in code of its own: torch keeps graphs by code."""
    shared = Decoder.run
    code = shared.__code__.replace()
    own = FunctionType(code, shared.__globals__, shared.__name__, shared.__defaults__)
    return MethodType(own, decoder)


def _of_what_is_given(guards: Sequence[Any]) -> list[bool]:
    """Which of the conditions of a graph are looked at before each step: not those on the decoder itself.

    That has graphs of its own and does not change; its conditions are most of all, and take time.
    """
    return [not guard.name.startswith("self.") for guard in guards]


def fitting(capacity: int, batch: int, context: int) -> tuple[int, int]:
    """The next larger size of a cache, in tokens and sequences, so that graphs can be used again.

    No larger than a model's `context`, unless that was asked for.
    """
    tokens = min(bucket(capacity), max(capacity, context))
    return tokens, next((rows for rows in ROWS if batch <= rows), batch)


def stays(cache: Cache) -> None:
    """Tells torch that a cache is there for good, so that a CUDA graph may be recorded that writes to it.

    To write to one that is made for a call would take a recording for each call.
    """
    for store in cache.stores():
        torch._dynamo.mark_static_address(store.data, guard=False)


def prepare_compiling(batch_invariant: bool) -> None:
    """Tells torch how many graphs to keep, and where; RequestError where steps cannot be compiled."""
    if batch_invariant:
        raise RequestError(
            "the batch-invariant mode has kernels of its own and cannot be compiled; "
            "ask for one of the two"
        )
    if torch._dynamo.config.disable:
        raise RequestError("compiling is switched off: unset TORCH_COMPILE_DISABLE")
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise RequestError(
            "compiled decoding needs a C++ compiler: install g++ or clang"
        ) from error
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
