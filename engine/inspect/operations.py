"""Every operation of a forward pass in order: what it made, of which shape, in how many bytes, and where.

What is recorded is what torch was told to do, one kernel call or view after the other, and between them
the probes with what they show. Views share the bytes of what they look at.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.probe import Probe


@dataclass
class Operation:
    """One call: `path` is the probe that it helps to make, or the module that it is in.

    `kind` is "view" (no new bytes), "in place", "new", or "probe" for a probe that shows its value.
    `bytes` are those of the value, `reads` the parameters that went in.
    """

    path: str
    name: str
    kind: str
    shape: list[int]
    dtype: str
    bytes: int
    inputs: list[list[int]]
    reads: list[str]


@dataclass
class _Open:
    """A module's call that has begun: rows and bytes alive by then, and the most bytes since."""

    path: str
    first: int
    before: int
    most: int


class Operations(TorchDispatchMode):
    """Records operations, and per module the most bytes of new tensors that were alive at once in it.

    What kernels take for themselves while they run is not seen.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: list[Operation] = []
        self.most: dict[str, int] = {}
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in parameters.items()}
        self._alive: dict[int, int] = {}  # bytes by storage
        self._now = 0
        self._open: list[_Open] = []

    # -- what torch does ---------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = _tensors((args, kwargs))
        known = {_storage(tensor): tensor for tensor in given}
        result = func(*args, **(kwargs or {}))
        for made in _tensors(result):
            key = _storage(made)
            kind = "in place" if func._schema.is_mutable else "view" if key in known else "new"
            if kind == "new":
                self._count(made, key)
            self._record(func, kind, made, given)
        for call in self._open:
            call.most = max(call.most, self._now)
        return result

    def _count(self, made: Tensor, key: int) -> None:
        if key in self._alive:
            return
        storage = made.untyped_storage()
        self._alive[key] = storage.nbytes()
        self._now += storage.nbytes()
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self._now -= self._alive.pop(key)

    def _record(self, func: Any, kind: str, made: Tensor, given: Sequence[Tensor]) -> None:
        reads = [self._names.get(_storage(tensor)) for tensor in given]
        self.rows.append(
            Operation(
                self._open[-1].path if self._open else "",
                func._schema.name.split("::")[-1],
                kind,
                list(made.shape),
                _name(made.dtype),
                made.nbytes,
                [list(tensor.shape) for tensor in given],
                sorted({name for name in reads if name is not None}),
            )
        )

    # -- where it does so --------------------------------------------------------------------------

    def begin(self, path: str, module: nn.Module) -> None:
        self._open.append(_Open(path, len(self.rows), self._now, self._now))

    def end(self, path: str, module: nn.Module) -> None:
        call = self._open.pop()
        self.most[path] = max(self.most.get(path, 0), call.most - call.before)
        if type(module) is Probe:
            self._claim(path)

    def _claim(self, path: str) -> None:
        """What its parent has computed for no other probe was for this one; what it kept, for none."""
        parent, first = (self._open[-1].path, self._open[-1].first) if self._open else ("", 0)
        kept = [n for n, row in enumerate(self.rows) if row.kind == "in place" and n >= first]
        for row in self.rows[max([first, *(n + 1 for n in kept)]) :]:
            if row.path == parent:
                row.path = path

    def shows(self, probe: str, value: Tensor) -> Tensor:
        """A tap: the probe's value as a row of its own."""
        self.rows.append(
            Operation(
                probe, "", "probe", list(value.shape), _name(value.dtype), value.nbytes, [], []
            )
        )
        return value


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def document(rows: Iterable[Operation], layers: int) -> dict[str, Any]:
    """The rows before, in and behind the layers; layers that do the same share one list."""
    before: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    inside: list[list[dict[str, Any]]] = [[] for _ in range(layers)]
    for row in rows:
        layer, path = place(row.path)
        line = {**vars(row), "path": path, "reads": [place(name)[1] for name in row.reads]}
        if layer is not None:
            inside[layer].append(line)
        else:
            (behind if inside[-1] else before).append(line)
    kinds: list[list[dict[str, Any]]] = []
    for lines in inside:
        if lines not in kinds:
            kinds.append(lines)
    return {
        "before": before,
        "kinds": kinds,
        "layers": [kinds.index(lines) for lines in inside],
        "behind": behind,
    }


def place(path: str) -> tuple[int | None, str]:
    """`layers.3.attn.q` as (3, "attn.q"), and `cache.layers.3.k` as (3, "cache.k")."""
    prefix, _, rest = path.rpartition("layers.") if "layers." in path else ("", "", "")
    if not rest:
        return None, path
    number, _, inner = rest.partition(".")
    return int(number), (prefix + inner).rstrip(".")
