"""Answers one question after another of what becomes of logits: JSON in lines, in and out.

A question has a `row`, a `past` and `settings`, see `conformance.decision_cases`; the answer is None
where no token is left, else `ranked`, `values`, `error` and `stable`, see `processors.Truth`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from conformance.decision_cases import Past, Row, from_json
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


def answers(questions: Iterable[str]) -> Iterator[str]:
    torch.set_num_threads(1)
    model = skeleton(_MODEL)
    for question in questions:
        yield json.dumps(_answer(model, json.loads(question)))


def _answer(model: Any, question: Any) -> dict[str, Any] | None:
    row = Row(**question["row"]).logits()
    past, settings = Past(**question["past"]), from_json(question["settings"])
    before = processed(model, {**settings, "temperature": 0.0}, row.double(), past)
    if before.isnan().all():
        return None
    found: Truth = truth(model, settings, row, past)
    return {
        "ranked": found.ranked.tolist(),
        "values": found.values.tolist(),
        "error": found.error,
        "stable": found.stable,
    }
