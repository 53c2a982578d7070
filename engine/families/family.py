"""What a family file declares: how its config.json reads, and where its weights lie.

A layout has one verb per parameter of the decoder, which says how checkpoint tensors become it. Verbs
nest, innermost first: `Split(Transpose(Rename("c_attn.weight")), 0, 768)`. Tensor names may hold
`{i}`, the layer's number, and below a Stack `{e}`, the expert's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.families.config import Config
from engine.spec import ModelSpec


@dataclass(frozen=True)
class Rename:
    """The checkpoint's tensor `source`, as it stands."""

    source: str


@dataclass(frozen=True)
class Transpose:
    """Its last two axes exchanged."""

    of: Verb


@dataclass(frozen=True)
class Split:
    """The slice from `start` to `stop` along `axis`: one of several matrices stored as one."""

    of: Verb
    start: int
    stop: int
    axis: int = 0


@dataclass(frozen=True)
class Deinterleave:
    """Along `axis`, pairs (2j, 2j+1) within each of `groups` equal parts reordered to halves.

    GGUF files of the llama architecture store the rows of q and k so, a head being a group, and some
    experts their gate and up projections, as one group.
    """

    of: Verb
    groups: int
    axis: int = 0


@dataclass(frozen=True)
class Stack:
    """`count` tensors side by side on a new first axis; `{e}` in their names counts them."""

    of: Verb
    count: int


@dataclass(frozen=True)
class Add:
    """Every number plus `number`: norms stored as 1 + weight, where the decoder adds the 1."""

    of: Verb
    number: float


@dataclass(frozen=True)
class Microscaled:
    """MXFP4 decoded: pairs of 4-bit numbers, and a power of two for each 32 of them.

    `blocks` is uint8 [..., n, 16] and `scales` uint8 [..., n]; the result is [..., n * 32]. Source: the
    OCP Microscaling Formats (MX) specification 1.0.
    """

    blocks: str
    scales: str


@dataclass(frozen=True)
class Either:
    """The first of several whose tensors the checkpoint has: layouts change with a library's age.

    Each layer decides for itself; where none is whole, it is that of which most is there.
    """

    options: tuple[Verb, ...]


@dataclass(frozen=True)
class Tie:
    """`source` where the checkpoint has it, else the parameter `target` itself, shared.

    Two parameters tied to each other may come from either tensor. Where both tensors are there and
    equal they are shared; different values stay two, whatever the config says, as transformers does.
    """

    source: str
    target: str


Verb = Rename | Transpose | Split | Deinterleave | Stack | Add | Microscaled | Either | Tie


@dataclass(frozen=True)
class Layout:
    """The verbs by parameter name, and patterns (`fnmatch`) of tensors that hold no parameter.

    A checkpoint writes its names behind one of `prefixes`, that which leads to most tensors; a tensor
    that is not there, a head mostly, is looked for behind the others. Parameters in `float32` keep that
    dtype in a model of any other.
    """

    verbs: Mapping[str, Verb]
    ignored: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    float32: frozenset[str] = frozenset()


def _nothing(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class GGUFNames:
    """How a family is written in GGUF: metadata keys (without `arch.`) to config.json's keys.

    `architecture` is its name there. `present` names config keys that no metadata declares: true where
    the file has that tensor. `implied` gives those that no file says, from the config read so far.
    """

    architecture: str
    keys: Mapping[str, str]
    ignored: frozenset[str]
    layout: Callable[[ModelSpec], Layout]
    present: Mapping[str, str] = field(default_factory=dict)
    implied: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _nothing


@dataclass(frozen=True)
class Family:
    """One architecture: config.json to ModelSpec, and where its weights are.

    `architecture` is its class in a config.json, `ignored` the config keys that are known to change
    nothing in the forward pass. `multimodal` names model types, by their class, whose text part is this
    architecture: its config is nested in theirs as `text_config`.
    """

    name: str
    architecture: str
    spec: Callable[[Config], ModelSpec]
    ignored: frozenset[str]
    layout: Callable[[ModelSpec], Layout]
    gguf: GGUFNames | None = None
    multimodal: Mapping[str, str] = field(default_factory=dict)
