"""Logits to a token: temperature, the cuts in transformers' order and meaning, and the draw."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.generate.params import SamplingParams


class Sampler:
    """Chooses one token after another from logits [V], by one request's parameters and own seed."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        # On the CPU whatever the model's device: a seed means the same tokens everywhere.
        self.generator = torch.Generator("cpu")
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)

    def __call__(self, logits: Tensor) -> int:
        if self.params.temperature == 0:
            return int(logits.argmax())
        probabilities = processed(logits.float(), self.params).softmax(-1).cpu()
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


def processed(logits: Tensor, params: SamplingParams) -> Tensor:
    """Float32 logits [V] after temperature and cuts; what is cut off is -inf."""
    logits = logits / params.temperature
    if params.top_k is not None:
        logits = top_k(logits, params.top_k)
    if params.top_p is not None:
        logits = top_p(logits, params.top_p)
    if params.min_p is not None:
        logits = min_p(logits, params.min_p)
    return logits


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest, and all that equal the k-th."""
    kth = logits.topk(min(k, logits.shape[-1])).values[..., -1:]
    return logits.masked_fill(logits < kth, -torch.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the most likely tokens up to the one whose share brings their sum to p (Holtzman 2020)."""
    ascending, order = logits.sort(descending=False)
    below = ascending.softmax(-1).cumsum(-1) <= 1 - p
    below[..., -1] = False  # the best token always stays
    return logits.masked_fill(below.scatter(-1, order, below), -torch.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the tokens at least p times as likely as the most likely one (Nguyen 2024)."""
    probabilities = logits.softmax(-1)
    floor = p * probabilities.amax(-1, keepdim=True)
    return logits.masked_fill(probabilities < floor, -torch.inf)
