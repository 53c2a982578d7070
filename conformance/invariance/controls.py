"""A fault for each axis, planted in the engine, that must turn its own cells red and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.invariance.axes import Cell
from conformance.mutants.mutant import Mutant
from conformance.mutants.mutant import fault as mutant
from conformance.mutants.planting import plant
from conformance.mutants.run import processes

if TYPE_CHECKING:  # the engine is imported behind the fault
    from conformance.invariance.verdict import Outcome

_MODEL = "mistral-window"


@dataclass(frozen=True)
class Control:
    """`fault` must turn the cells `red` to bugs and leave the cells `green` as they are."""

    axis: str
    fault: Mutant
    red: Sequence[Cell]
    green: Sequence[Cell]


def judged(controls: Sequence[Control]) -> Mapping[str, Sequence[Outcome]]:
    """What became of each control's cells, first those that must be red, by the fault's name.

    Each fault has a process of its own, in which it is planted before the engine is imported.
    """
    with processes() as pool:
        running = {
            control.fault.id: pool.submit(_outcomes, control.fault, (*control.red, *control.green))
            for control in controls
        }
        return {name: future.result() for name, future in running.items()}


def _outcomes(fault: Mutant, cells: Sequence[Cell]) -> Sequence[Outcome]:
    plant([fault])
    from conformance.invariance.run import outcomes

    return outcomes(cells)


def _control(
    axis: str,
    name: str,
    what: str,
    file: str,
    old: str,
    new: str,
    red: Sequence[Mapping[str, str]],
    green: Sequence[Mapping[str, str]],
) -> Control:
    """Cells are given by what they have of other values than the naive run of one model."""

    def cells(given: Sequence[Mapping[str, str]]) -> list[Cell]:
        return [Cell.of(**{"model": _MODEL, **changes}) for changes in given]

    return Control(
        axis, mutant(f"invariance-{name}", what, "", file, old, new, ""), cells(red), cells(green)
    )


_PACKED = {"packing": "packed row"}
_BESIDE = {**_PACKED, "batch": "beside seven"}
_LEFT = {"packing": "padded batch", "padding": "left", "batch": "beside one"}
_RIGHT = {**_LEFT, "padding": "right"}
_PAGED = {"cache": "paged"}

CONTROLS: Sequence[Control] = (
    _control(
        "model",
        "softcap-lost",
        "the tiled kernel leaves the softcap out",
        "backends/tiled.py",
        "softcap(products * attn.scale, attn.softcap, self.arithmetic)",
        "softcap(products * attn.scale, None, self.arithmetic)",
        red=[{"model": "gemma2", "backend": "tiled"}],
        green=[{"backend": "tiled"}, {"model": "gemma2"}],
    ),
    _control(
        "dtype",
        "cache-in-bfloat16",
        "what goes into scattered slots is rounded to bfloat16 whatever the dtype",
        "cache/store.py",
        "index_copy_(0, rows, new.flatten(0, 2))",
        "index_copy_(0, rows, new.flatten(0, 2).bfloat16().to(new.dtype))",
        red=[{**_PAGED, "backend": "tiled"}],
        green=[{**_PAGED, "backend": "tiled", "dtype": "bfloat16"}, {}],
    ),
    _control(
        "mode",
        "product-untiled",
        "the batch-invariant mode gives torch all rows of a product at once",
        "invariant.py",
        "[linear(tile, weight, bias) for tile in tiles]",
        "[linear(tile, weight, bias) for tile in (rows,)]",
        red=[{"mode": "batch_invariant", "chunk": "7"}],
        green=[{"chunk": "7"}],
    ),
    _control(
        "backend",
        "tiles-not-rescaled",
        "what earlier tiles gave is not scaled down when a later one has a higher score",
        "backends/tiled.py",
        "context = context * kept + mixed",
        "context = context + mixed",
        red=[{"backend": "tiled"}, {"backend": "tiled", "chunk": "2"}],
        green=[{"backend": "sdpa"}, {"chunk": "2"}],
    ),
    _control(
        "backend",
        "flash-scaled-twice",
        "flash is given another scale than the model's",
        "backends/flash.py",
        "sdpa.mix(q, k, v, view, scale)",
        "sdpa.mix(q, k, v, view, scale * scale)",
        red=[{"backend": "flash"}, {"backend": "flash", "chunk": "7"}],
        green=[{"backend": "sdpa"}, {"chunk": "7"}],
    ),
    _control(
        "backend",
        "flex-window-dropped",
        "flex sees all earlier keys in layers with a window",
        "backends/flex.py",
        "visible(q_pos[b, t], k_pos[b, key], window)",
        "visible(q_pos[b, t], k_pos[b, key], None)",
        red=[{"backend": "flex"}],
        green=[{"backend": "sdpa"}],
    ),
    _control(
        "compiled",
        "stale-constant",
        "a graph has taken the positions of its first pass for constants",
        "decoder.py",
        "x = self.embed(ids, step.positions)",
        "x = self.embed(ids.clamp(max=9) if torch.compiler.is_compiling() else ids, step.positions)",
        red=[{"compiled": "yes"}],
        green=[{}],
    ),
    _control(
        "cache",
        "ring-one-slot-short",
        "a ring has a slot less than a window and a pass need",
        "cache/contiguous.py",
        "window - 1 + self.longest_pass",
        "window - 2 + self.longest_pass",
        red=[{"cache": "ring", "chunk": "7"}, {"cache": "ring", "chunk": "2"}],
        green=[{"chunk": "7"}, {**_PAGED, "chunk": "7"}, {"cache": "ring"}],
    ),
    _control(
        "cache",
        "neighbours-table",
        "a block table is read from the row before",
        "cache/blocks.py",
        "for r in rooms])\n        # Behind",
        "for r in (rooms[-1:] + rooms[:-1])])\n        # Behind",
        red=[{**_PAGED, **_BESIDE}],
        green=[_BESIDE, {**_PAGED, "batch": "beside seven"}],
    ),
    _control(
        "chunk",
        "positions-restart",
        "positions of a later chunk count from 0 again",
        "cache/cache.py",
        "q_pos = self._positions([room.length - n for room in rooms], n)",
        "q_pos = self._positions([room.length - n if n == 1 else 0 for room in rooms], n)",
        red=[{"chunk": "7"}, {"chunk": "2"}],
        green=[{}, _BESIDE, {"chunk": "1"}],
    ),
    _control(
        "packing",
        "first-share-for-all",
        "each group of a packed pass reads the first one's share of it",
        "cache/cache.py",
        "packed[0, :, self.start : self.start + B * T]",
        "packed[0, :, : B * T]",
        red=[{**_PACKED, "batch": "beside one"}, _LEFT],
        green=[{"batch": "beside one"}, _PACKED],
    ),
    _control(
        "padding",
        "left-padding-counts",
        "padding on the left counts as tokens",
        "generate/loaded.py",
        "attention_mask.to(self.device).bool()",
        "attention_mask.to(self.device).bool().sort(dim=1, descending=True).values",
        red=[_LEFT],
        green=[_RIGHT, {"batch": "beside one"}],
    ),
    _control(
        "batch",
        "first-keys-for-all",
        "all sequences of a group read the keys of its first",
        "attention.py",
        "self.attend(group.of(q), k, v, views[self.window], self)",
        "self.attend(group.of(q), k[:1].expand_as(k), v, views[self.window], self)",
        red=[_BESIDE, {**_PACKED, "batch": "beside one"}],
        green=[_PACKED, {"batch": "beside seven"}],
    ),
    _control(
        "n",
        "fork-without-copy",
        "branches write into blocks that they share",
        "cache/paged.py",
        "if block is not None and self.pool.holders[block] > 1:\n                self._copy(room)",
        "if block is not None and self.pool.holders[block] < 1:\n                self._copy(room)",
        red=[{**_PAGED, "n": "3"}],
        green=[{"n": "3"}, _PAGED, {**_PAGED, "batch": "beside one"}],
    ),
    _control(
        "prefix",
        "one-token-too-far",
        "a beginning is taken to be a token longer than what is known of it",
        "cache/paged.py",
        "room.length = n\n",
        "room.length = min(n + 1, len(ids)) if n else 0\n",
        red=[{**_PAGED, "prefix": "partial"}],
        green=[_PAGED, {**_PAGED, "history": "after another"}],
    ),
    _control(
        "pre-empted",
        "answer-forgotten",
        "who is pre-empted goes on without the last token of its answer",
        "generate/scheduler.py",
        "self.drafter.forget(request)\n        self._wait(request)",
        "self.drafter.forget(request)\n        del request.tokens[-1]\n        self._wait(request)",
        red=[{**_BESIDE, "pre_empted": "once"}, {**_BESIDE, **_PAGED, "pre_empted": "twice"}],
        green=[_BESIDE, {**_BESIDE, **_PAGED}],
    ),
    _control(
        "history",
        "aborted-goes-on",
        "an aborted request loses its room and goes on all the same",
        "generate/scheduler.py",
        "        for one in request.answers:\n            self._forget(one)",
        "        for one in request.answers:\n"
        "            self.cache.close(self.running[one]) if one in self.running else None",
        red=[{"history": "after an aborted", "chunk": "2"}],
        green=[{"history": "after another", "chunk": "2"}, {"chunk": "2"}],
    ),
    _control(
        "drafts",
        "rows-of-drafts-reversed",
        "what follows a token is chosen from the logits behind the last draft",
        "generate/scheduler.py",
        "logits[-1 - len(share.drafts) :]",
        "logits[-1 - len(share.drafts) :].flip(0)",
        red=[{"drafts": "right"}, {**_PAGED, "drafts": "wrong"}],
        green=[{}, _BESIDE, {"chunk": "2"}],
    ),
)
