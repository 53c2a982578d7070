"""Logits to a token: temperature, the cuts in transformers' order and meaning, and the draw.

Cuts and draw happen in float64 on the CPU, so that with one seed the same logits give the same token
on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import LockstepError
from engine.generate.params import SamplingParams


class Sampler:
    """Chooses one token after another from logits [V], by one request's parameters and own seed."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.generator = torch.Generator("cpu")
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)

    def __call__(self, logits: Tensor) -> int:
        """Raises LockstepError where the logits are not finite."""
        best = int(logits.argmax())  # the first of equals; a NaN comes before every number
        if not logits[best].isfinite():
            raise LockstepError(
                f"the model's logits are not finite (token {best} has {float(logits[best])}); "
                "its weights are damaged, or too large for the dtype: try float32"
            )
        if self.params.temperature == 0:
            return best
        probabilities = processed(logits, self.params).softmax(-1)
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


def processed(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logits [V] after temperature and cuts, float64 on the CPU, the largest 0; what is cut is -inf."""
    logits = logits.cpu().double()
    # Shifted first: a temperature near 0 then takes the rest to -inf, and the best never to inf.
    logits = (logits - logits.max()) / params.temperature
    if params.top_k is not None:
        logits = top_k(logits, params.top_k)
    if params.top_p is not None and params.top_p < 1:
        logits = top_p(logits, params.top_p)
    if params.min_p is not None:
        logits = min_p(logits, params.min_p)
    return logits


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest, and all that equal the k-th."""
    kth = logits.topk(min(k, len(logits))).values[-1]
    return logits.masked_fill(logits < kth, -torch.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the most likely tokens up to the one whose share brings their sum to p (Holtzman 2020).

    Of equal tokens the lower ids count as the more likely.
    """
    shares, order = logits.softmax(-1).sort(descending=True, stable=True)
    cut = shares.cumsum(-1) - shares >= p  # what is more likely has p already; 0 for the best
    return logits.masked_fill(cut.scatter(-1, order, cut), -torch.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the tokens at least p times as likely as the most likely one (Nguyen 2024)."""
    return logits.masked_fill((logits - logits.max()).exp() < p, -torch.inf)
