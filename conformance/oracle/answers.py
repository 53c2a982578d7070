"""Plain questions to the reference, for tests and measurements: logits, greedy tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.oracle.model import Oracle
from conformance.reorder import Variant


def logits(model: Any, ids: Sequence[int], attention: str) -> Tensor:
    """Logits [T, V] of one whole pass with transformers' own attention ("eager" or "sdpa")."""
    model.set_attn_implementation(attention)
    with torch.inference_mode():
        result: Tensor = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return result


def logits_in_chunks(model: Any, ids: Sequence[int], size: int) -> Tensor:
    """Logits [T, V] by eager attention, `size` tokens at a time through transformers' own cache."""
    shown: list[Tensor] = []

    def tap(probe: str, value: Tensor) -> Tensor:
        if probe == "logits":
            shown.append(value[0].clone())
        return value

    oracle = Oracle(model, Variant(threads=torch.get_num_threads()))
    oracle.begin(len(ids))
    for chunk in torch.tensor(list(ids)).split(size):
        oracle.step(chunk, tap)
    return torch.cat(shown)


def greedy(model: Any, ids: Sequence[int], max_tokens: int) -> list[int]:
    """The tokens that `generate` chooses without sampling, the end token included."""
    prompt = torch.tensor([list(ids)])
    with torch.inference_mode():
        result = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
    answer: list[int] = result[0, len(ids) :].tolist()
    return answer
