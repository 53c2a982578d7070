"""Which keys a query sees, from positions alone, and what is added to its scores.

Shapes: B sequences, T new tokens of each, S keys in view of each, H query heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")


def visible(q_pos: Tensor, k_pos: Tensor, window: int | None) -> Tensor:
    """Which keys each query sees, from positions alone: bool [..., T, S] from [..., T, 1] and [..., 1, S].

    One function for prefill, chunks and decode steps, for caches of every kind and for batches; a key
    slot without a token has position -1. A window counts the query's own key.
    """
    causal = (k_pos >= 0) & (k_pos <= q_pos)
    return causal if window is None else causal & (k_pos > q_pos - window)


#: Of the positions of queries [B, 1, T, 1] and keys [B, 1, 1, S]; see `Custom`.
PositionFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Custom:
    """A user's own attention, which narrows or weighs what a causal layer sees, in all layers.

    Both are functions of the positions of queries [B, 1, T, 1] and keys [B, 1, 1, S], and may not look
    at anything else, so that every cut of a prompt gives the same. `mask` says which keys are seen
    (bool, broadcast to [B, H, T, S]), besides the model's own causal mask and window; `bias` is added
    to the scores after scale and softcap (broadcast to [B, H, T, S]; ALiBi, Press et al. 2022, is one).
    """

    mask: PositionFunction | None = None
    bias: PositionFunction | None = None


PLAIN = Custom()


class View:
    """What the queries at q_pos [B, T] see of the keys at k_pos [B, S], in layers of one window.

    Among the keys are the queries' own, and they come in the order of their positions, with none left
    out between a sequence's first and last; slots without a token are behind them, and there are none
    where a sequence has several queries, whose own keys are the last ones then. A graph's keys alone
    may come in another order (`Layout.bucket`): its kernel is one that looks at nothing but positions.
    """

    def __init__(
        self, q_pos: Tensor, k_pos: Tensor, window: int | None, custom: Custom = PLAIN
    ) -> None:
        self.q_pos, self.k_pos, self.window = q_pos, k_pos, window
        self.custom = custom
        self._made: dict[Callable[[View], Any], Any] = {}

    def once(self, make: Callable[[View], Made]) -> Made:
        """What `make` makes of the view, made once for all layers that share it; in a graph by each."""
        if torch.compiler.is_dynamo_compiling():
            return make(self)
        if make not in self._made:
            self._made[make] = make(self)
        made: Made = self._made[make]
        return made

    @property
    def visible(self) -> Tensor:
        """bool, to be broadcast to [B, H, T, S]."""
        return self.once(_visible)

    @property
    def bias(self) -> Tensor | None:
        """What is added to scores, float32 to be broadcast to [B, H, T, S], if anything is."""
        return self.once(_bias)

    @property
    def whole(self) -> bool:
        """Whether each query sees its own key and all before it, and no other key is there.

        As many queries as keys are known to be those keys' own, whatever their positions.
        """
        T, S = self.q_pos.shape[1], self.k_pos.shape[1]
        return T == S and (self.window is None or self.window >= T) and self.custom == PLAIN

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        """The positions of queries [B, 1, T, 1] and of keys [B, 1, 1, S]."""
        return self.q_pos[:, None, :, None], self.k_pos[:, None, None, :]

    def keys(self, queries: slice) -> slice:
        """Where all keys are that these of several queries see, and few others."""
        before = self.k_pos.shape[1] - self.q_pos.shape[1]  # keys that are older than all queries
        first = 0 if self.window is None else before + queries.start - self.window + 1
        return slice(max(0, first), before + queries.stop)

    def part(self, queries: slice, keys: slice) -> View:
        """The same for some queries and keys of all sequences: what a kernel that works in tiles asks."""
        return View(self.q_pos[:, queries], self.k_pos[:, keys], self.window, self.custom)

    def row(self, b: int) -> View:
        """The same for sequence b alone."""
        return View(self.q_pos[b, None], self.k_pos[b, None], self.window, self.custom)


def _visible(view: View) -> Tensor:
    q, k = view.columns
    seen = visible(q, k, view.window)
    return seen if view.custom.mask is None else seen & view.custom.mask(q, k)


def _bias(view: View) -> Tensor | None:
    return None if view.custom.bias is None else view.custom.bias(*view.columns).float()
