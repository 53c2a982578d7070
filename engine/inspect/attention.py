"""What heads look at: maps of softmax weights by layer and head, exact or by blocks, and a head's habits.

A map has a row for each token that was read and a column for each that could be seen. Where there are
more than fit a page, neighbours share a block, of which the largest weight and the mean are kept.
Shapes: L layers, H heads of each, N tokens, W tokens in a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.inspect.numbers import ten_thousandths

SIDE = 64  # rows of a map, at most
NUMBERS = 1_200_000  # of all maps together, at most
LEAST = 8  # rows of a map, however many there are

#: What is said of a head, as means over the rows of tokens that can see more than one key.
HABITS = ("entropy", "first", "self", "previous", "distance", "sink")


def block_size(tokens: int, heads: int) -> int:
    """Tokens in a block where so many heads share a page: 1 where every weight has room."""
    side = min(SIDE, math.isqrt(NUMBERS // max(heads, 1)))
    return max(1, math.ceil(tokens / max(side, LEAST)))


@dataclass
class HeadMaps:
    """The maps of one layer: `add` takes rows as they are computed, in order.

    Rows of N tokens lie in ceil(N / W) blocks each way. `window` and learned sinks are the layer's own.
    """

    heads: int
    tokens: int
    width: int
    window: int | None
    sinks: bool
    largest: Tensor = field(init=False)
    total: Tensor = field(init=False)
    count: Tensor = field(init=False)
    entropies: Tensor = field(init=False)
    habits: Tensor = field(init=False)
    rows: int = 0
    telling: int = 0  # rows that count for habits

    def __post_init__(self) -> None:
        side = math.ceil(self.tokens / self.width)
        self.largest = torch.zeros(self.heads, side, side)
        self.total = torch.zeros(self.heads, side, side, dtype=torch.float64)
        self.count = torch.zeros(side, side, dtype=torch.float64)
        self.entropies = torch.zeros(self.heads, side, dtype=torch.float64)
        self.habits = torch.zeros(len(HABITS), self.heads, dtype=torch.float64)

    def add(self, weights: Tensor) -> None:
        """Softmax weights [H, T, S] of the next T tokens over the S last keys, the newest at the end."""
        w = weights.detach().float().cpu()
        T, S = w.shape[1:]
        first, oldest = self.rows, self.rows + T - S
        q, k = torch.arange(first, first + T), torch.arange(oldest, oldest + S)
        seen = (k >= 0) & (k <= q[:, None])
        if self.window is not None:
            seen &= k > q[:, None] - self.window
        entropy = -torch.special.xlogy(w, w).sum(-1) / math.log(2)  # [H, T] bits
        rows, columns = q // self.width, k // self.width
        cells = rows[:, None] * len(self.count) + columns  # [T, S]
        flat = cells.flatten().expand(self.heads, -1)
        self.largest.flatten(1).scatter_reduce_(1, flat, w.flatten(1), "amax")
        self.total.flatten(1).scatter_add_(1, flat, w.flatten(1).double())
        self.count.flatten().scatter_add_(0, cells.flatten(), seen.flatten().double())
        self.entropies.scatter_add_(1, rows.expand(self.heads, -1), entropy.double())
        self._learn(w, q, k, entropy)
        self.rows += T

    def _learn(self, w: Tensor, q: Tensor, k: Tensor, entropy: Tensor) -> None:
        """Adds to the habits what rows of more than one visible key say."""
        telling = q > 0
        w, q, entropy = w[:, telling], q[telling], entropy[:, telling]
        away = (q[:, None] - k).float()  # [T, S]
        said = [
            entropy,
            w[..., k == 0].sum(-1),
            (w * (away == 0)).sum(-1),
            (w * (away == 1)).sum(-1),
            (w * away).sum(-1),
            1 - w.sum(-1) if self.sinks else torch.zeros_like(entropy),
        ]
        self.habits += torch.stack([each.double().sum(-1) for each in said])
        self.telling += len(q)

    def document(self) -> dict[str, Any]:
        """Per head: rows of weights in ten-thousandths, each up to its own column; entropies; habits."""
        side = math.ceil(self.rows / self.width)
        lower = [slice(0, row + 1) for row in range(side)]
        means = self.total / self.count.clamp(min=1)
        last = self.rows - (side - 1) * self.width
        sizes = torch.tensor([float(self.width)] * (side - 1) + [float(last)])
        return {
            "window": self.window,
            "sinks": self.sinks,
            "heads": [
                {
                    "largest": [
                        ten_thousandths(self.largest[h, r, c]) for r, c in enumerate(lower)
                    ],
                    "mean": None
                    if self.width == 1
                    else [ten_thousandths(means[h, r, c]) for r, c in enumerate(lower)],
                    "entropies": [round(e, 3) for e in (self.entropies[h, :side] / sizes).tolist()],
                    **dict(zip(HABITS, self._means(h), strict=True)),
                }
                for h in range(self.heads)
            ],
        }

    def _means(self, head: int) -> list[float]:
        return [round(value, 4) for value in (self.habits[:, head] / max(self.telling, 1)).tolist()]
