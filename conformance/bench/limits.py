"""What the machine can do, and how fast a model could be if nothing else took time.

A step of decoding reads all weights once, and the keys and values of every sequence; a prefill multiplies.
The limit is the slower of the two: bytes over the memory's bandwidth, operations over the matrix rate
(Williams et al. 2009, the roofline). Embeddings are looked up, norms and softmax are not counted: no
program does without them, so that a limit is one that nobody reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.bench.clock import seconds
from conformance.bench.worker import Questions, serve
from conformance.process import Say

TIMES = 5  # of which the best counts: what the machine can do
BIG = {"cpu": 1 << 29, "cuda": 1 << 32}  # bytes: much more than any cache holds


@dataclass(frozen=True)
class Limits:
    """Bytes per second of reading, and operations per second of products in each dtype.

    `row` is the bandwidth that a product of one row with a matrix reaches: what torch makes of it.
    """

    bandwidth: float
    row: float
    matrix: dict[str, float]

    def seconds(self, read: float, operations: float, dtype: str) -> float:
        """What nobody can be faster than."""
        return max(read / self.bandwidth, operations / self.matrix[dtype])


def best_of(rounds: Sequence[Limits]) -> Limits:
    """The best of what the machine did."""
    return Limits(
        max(found.bandwidth for found in rounds),
        max(found.row for found in rounds),
        {name: max(found.matrix[name] for found in rounds) for name in rounds[0].matrix},
    )


class Machine:
    """Measures the limits, as often as it is asked, by reading `size` bytes and by products of `shapes`.

    Those are tokens, inputs and outputs of a map.
    """

    def __init__(
        self, device: torch.device, dtypes: list[str], size: int, shapes: list[list[int]]
    ) -> None:
        self.device, self.dtypes, self.shapes = device, dtypes, shapes
        self.big = torch.ones(size // 4, device=device)

    @property
    def questions(self) -> Questions:
        return {"limits": self.limits}

    @torch.inference_mode()
    def limits(self) -> dict[str, Any]:
        rows = self.big[: len(self.big) // 4096 * 4096].view(-1, 4096)
        row = torch.ones(1, 4096, device=self.device)
        return {
            "bandwidth": self.big.nbytes / self._best(self.big.sum),
            "row": rows.nbytes / self._best(lambda: torch.nn.functional.linear(row, rows)),
            "matrix": {
                dtype: max(self._rate(dtype, *shape) for shape in self.shapes)
                for dtype in self.dtypes
            },
        }

    def _rate(self, dtype: str, tokens: int, n_in: int, n_out: int) -> float:
        made = {"dtype": getattr(torch, dtype), "device": self.device}
        x, w = torch.randn(tokens, n_in, **made), torch.randn(n_out, n_in, **made)
        return 2 * tokens * n_in * n_out / self._best(lambda: torch.nn.functional.linear(x, w))

    def _best(self, call: Callable[[], object]) -> float:
        """Seconds."""
        call()
        return min(seconds(call, self.device) for _ in range(TIMES))


def start(settings: dict[str, Any], say: Say) -> Questions:
    if threads := settings["threads"]:
        torch.set_num_threads(threads)
    device = torch.device(settings["device"])
    size = settings["reading"] or BIG[device.type]
    return Machine(device, settings["dtypes"], size, settings["products"]).questions


if __name__ == "__main__":
    serve(start)
