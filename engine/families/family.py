"""What a family file declares: how its config.json reads, and where its weights lie.

A layout has one verb per parameter of the decoder, which says how a checkpoint's tensor becomes it.
Names may hold `{i}`, the layer's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.families.config import Config
from engine.spec import ModelSpec


@dataclass(frozen=True)
class Rename:
    """The parameter is the checkpoint's tensor `source`, as it stands."""

    source: str


@dataclass(frozen=True)
class Deinterleave:
    """Rows of each head reordered from pairs (2j, 2j+1) to halves (j, j + D/2).

    GGUF files of the llama architecture store q and k with interleaved rope pairs. `heads` says
    which head count the rows belong to; a bias is reordered likewise.
    """

    source: str
    heads: Literal["n_heads", "n_kv_heads"]


@dataclass(frozen=True)
class Tie:
    """The parameter is `source` where the checkpoint has it, else shares the parameter `target`.

    Two parameters tied to each other may come from either tensor. Where both tensors are there and
    equal they are shared; different values stay two, whatever the config says, as transformers does.
    """

    source: str
    target: str


Verb = Rename | Deinterleave | Tie


@dataclass(frozen=True)
class Layout:
    """The verbs by parameter name, and patterns (`fnmatch`) of tensors that hold no parameter."""

    verbs: Mapping[str, Verb]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class GGUFNames:
    """How a family is written in GGUF: metadata keys (without `arch.`) to config.json's keys.

    `present` names config keys that no metadata declares: true where the file has that tensor.
    """

    keys: Mapping[str, str]
    present: Mapping[str, str]
    ignored: frozenset[str]
    layout: Callable[[ModelSpec], Layout]


@dataclass(frozen=True)
class Family:
    """One architecture: config.json to ModelSpec, and where its weights are.

    `ignored` holds the config keys that are known to change nothing in the forward pass.
    """

    name: str
    architecture: str
    spec: Callable[[Config], ModelSpec]
    ignored: frozenset[str]
    layout: Callable[[ModelSpec], Layout]
    gguf: GGUFNames | None
