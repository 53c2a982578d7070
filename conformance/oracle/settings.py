"""Answers one question after another of what becomes of logits: JSON in lines, in and out.

A question has a `row`, a `past` and `settings`, see `conformance.decision_cases`; the answer is None
where no token is left, else `ranked`, `values`, `error` and `stable`, see `processors.Truth`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from conformance.decision_cases import Past, Row, Settings, from_json, settled
from conformance.oracle.configs import skeleton
from conformance.oracle.processors import Truth, processed, truth

#: Processors ask a model what kind it is, and nothing else.
_MODEL = {
    "model_type": "llama",
    "vocab_size": 1,
    "hidden_size": 2,
    "intermediate_size": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
_SHARES = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_NUDGES = (1 - 1e-9, 1 + 1e-9)


def answers(questions: Iterable[str]) -> Iterator[str]:
    torch.set_num_threads(1)
    model = skeleton(_MODEL)
    for question in questions:
        yield json.dumps(_answer(model, json.loads(question)))


def _answer(model: Any, question: Any) -> dict[str, Any] | None:
    row = Row(**question["row"]).logits()
    past, settings = Past(**question["past"]), from_json(question["settings"])
    if processed(model, {**settings, "temperature": 0.0}, row, past).isnan().all():
        return None
    found = truth(model, settings, row, past)
    return {
        "ranked": found.ranked.tolist(),
        "values": found.values.tolist(),
        "error": found.error,
        "stable": found.stable and _clear(model, settings, row, past, found),
    }


def _clear(model: Any, settings: Settings, row: Tensor, past: Past, found: Truth) -> bool:
    """Whether the cuts keep the same at shares next to those asked for.

    Equal logits are equal however they are stretched, and sums of equal shares reach another share or
    not as they are rounded.
    """
    kept = settled(found.ranked, found.values).isfinite()
    for nudge in _NUDGES:
        shares = {name: min(settings[name] * nudge, 1.0) for name in _SHARES if name in settings}
        other = processed(model, {**settings, **shares}, row.double(), past)
        if not torch.equal(settled(found.ranked, other).isfinite(), kept):
            return False
    return True
