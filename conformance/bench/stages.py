"""Time and memory of the stages on the path of a text: the same recorders for any engine of torch modules.

Stages of a pass are the calls of modules, seen by hooks, or of functions. Time is taken in one pass and
memory in another, as watching memory takes time. A layer's stage is that of one layer: the mean of the
seconds, and the most bytes.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conformance.bench.clock import now, seconds

#: In the order of the path; those between tokenize and detokenize exist for the prompt and for a step.
TEXT_STAGES = ("load", "tokenize", "detokenize")
PASS_STAGES = ("embedding", "attention", "cache", "feed-forward", "head", "whole pass")
PER_LAYER = ("attention", "cache", "feed-forward")


@dataclass(frozen=True)
class StageFigures:
    """Seconds, and bytes of tensors that were made and held at once; None where nobody can say."""

    seconds: float
    bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Recorder(Protocol):
    """Is told when a stage begins and ends; stages may lie within one another."""

    def begin(self, stage: str) -> None: ...
    def end(self, stage: str) -> None: ...


class Clock:
    """Seconds of each stage, added up over its calls."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self._begun: list[float] = []

    def begin(self, stage: str) -> None:
        self._begun.append(now(self._device))

    def end(self, stage: str) -> None:
        self.seconds[stage] += now(self._device) - self._begun.pop()


class Allocations(TorchDispatchMode):
    """The most bytes of new tensors that were alive at once in each stage, its results included.

    What kernels take for themselves while they run is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: dict[str, int] = {}
        self._alive: dict[int, int] = {}  # bytes by storage
        self._now = 0
        self._open: list[
            list[int]
        ] = []  # of each open stage: bytes when it began, and the most since

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            key = storage._cdata
            if key not in given and key not in self._alive:
                self._alive[key] = storage.nbytes()
                self._now += storage.nbytes()
                weakref.finalize(storage, self._freed, key)
        for stage in self._open:
            stage[1] = max(stage[1], self._now)
        return result

    def _freed(self, key: int) -> None:
        self._now -= self._alive.pop(key)

    def begin(self, stage: str) -> None:
        self._open.append([self._now, self._now])

    def end(self, stage: str) -> None:
        before, most = self._open.pop()
        self.bytes[stage] = max(self.bytes.get(stage, 0), most - before)


def _storages(values: Any) -> list[Any]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]


@contextmanager
def watched(recorder: Recorder, stages: Mapping[str, Iterable[nn.Module]]) -> Iterator[None]:
    """Tells the recorder of every call of these modules."""
    with ExitStack() as stack:
        for stage, modules in stages.items():
            for module in modules:
                before = module.register_forward_pre_hook(partial(_begin, recorder, stage))
                after = module.register_forward_hook(partial(_end, recorder, stage))
                stack.callback(before.remove)
                stack.callback(after.remove)
        yield


def _begin(recorder: Recorder, stage: str, *module_and_arguments: object) -> None:
    recorder.begin(stage)


def _end(recorder: Recorder, stage: str, *module_and_values: object) -> None:
    recorder.end(stage)


def recorded(recorder: Recorder, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the recorder told of its calls."""

    def call(*arguments: Any, **options: Any) -> Any:
        recorder.begin(stage)
        try:
            return function(*arguments, **options)
        finally:
            recorder.end(stage)

    return call


def staged(
    play: Callable[[Recorder], None], device: torch.device, layers: int
) -> dict[str, StageFigures]:
    """The stages of a prompt and of a step that `play` tells a recorder of; it is played three times."""
    clock, allocations = Clock(device), Allocations()
    recorders: list[tuple[Recorder, AbstractContextManager[Any]]] = [
        (Clock(device), nullcontext()),  # to warm up
        (clock, nullcontext()),
        (allocations, allocations),
    ]
    for recorder, mode in recorders:
        with mode:
            play(recorder)
    return {
        stage: StageFigures(
            taken / (layers if stage.endswith(PER_LAYER) else 1), allocations.bytes.get(stage)
        )
        for stage, taken in clock.seconds.items()
    }


def text_stage(call: Callable[[], Any]) -> tuple[Any, StageFigures]:
    """A stage without tensors: its result, and its seconds at the second time."""
    result = call()
    return result, StageFigures(seconds(call, torch.device("cpu")))
