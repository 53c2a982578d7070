"""A second decoder of the same weights, to be watched while the first goes on unwatched."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Protocol, cast

from torch import nn

from engine.backends import Kernel
from engine.decoder import Block, Decoder


def twin(decoder: Decoder, backend: Kernel, device: str) -> Decoder:
    """A plain decoder that shares every parameter and buffer, with attention by `backend`.

    Hooks on it are its own: whoever uses the first one meanwhile neither sees nor meets them. A decoder
    that is compiled has a twin that is not.
    """
    shared = {id(held): held for held in chain(decoder.parameters(), decoder.buffers())}
    made = Decoder(decoder.spec, backend, device, decoder.custom)
    for name in ("embed", "layers", "final_norm", "logits"):
        setattr(made, name, copy.deepcopy(getattr(decoder, name), shared))
    made.use(backend)
    return made.eval()


def kernel(decoder: Decoder) -> Kernel:
    """The attention kernel that a decoder uses."""
    return cast("Block", decoder.layers[0]).attn.attend


class Recorder(Protocol):
    """Is told when a module begins and ends, by its path; modules lie within one another."""

    def begin(self, path: str, module: nn.Module) -> None: ...
    def end(self, path: str, module: nn.Module) -> None: ...


@contextmanager
def told(recorder: Recorder, modules: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
    """Tells the recorder of every call of these modules, by their paths."""

    def begin(path: str, module: nn.Module, arguments: object) -> None:
        recorder.begin(path, module)

    def end(path: str, module: nn.Module, arguments: object, value: object) -> None:
        recorder.end(path, module)

    with ExitStack() as stack:
        for path, module in modules:
            for handle in (
                module.register_forward_pre_hook(partial(begin, path)),
                module.register_forward_hook(partial(end, path)),
            ):
                stack.callback(handle.remove)
        yield
