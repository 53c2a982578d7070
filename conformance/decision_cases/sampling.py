"""What is asked of sampling: rows of logits, tokens that came before, and settings.

Rows are drawn with a seed, or written out where a boundary must be met exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAME = "decisions"
_GONE = float("-inf")


@dataclass(frozen=True)
class Row:
    """Logits: `values`, or `vocab` normal numbers times `spread`, of which the last `masked` are -inf.

    `step` rounds them to its multiples, which makes many equal.
    """

    name: str
    values: tuple[float, ...] = ()
    vocab: int = 0
    seed: int = 0
    spread: float = 1.0
    step: float | None = None
    masked: int = 0

    def logits(self) -> Tensor:
        """float32 [V]."""
        if self.values:
            return torch.tensor(self.values)
        generator = torch.Generator("cpu").manual_seed(self.seed)
        numbers = self.spread * torch.randn(self.vocab, generator=generator)
        if self.step is not None:
            numbers = (numbers / self.step).round() * self.step
        numbers[self.vocab - self.masked :] = _GONE
        return numbers


ROWS: tuple[Row, ...] = (
    # Shares that are exact in binary: half of the mass is reached, not passed.
    Row("quarters", values=(0.0, 0.0, 0.0, 0.0)),
    Row("halves", values=(_GONE, 2.5, _GONE, 2.5, _GONE)),
    Row("ties", vocab=41, seed=1, spread=1.5, step=0.75),
    Row("masked", vocab=53, seed=2, spread=2.0, masked=20),
    Row("flat", vocab=67, seed=3, spread=0.05),
    Row("peaked", vocab=67, seed=4, spread=6.0),
    Row("wide", vocab=301, seed=5, spread=3.0),
)


@dataclass(frozen=True)
class Past:
    """What came before a choice: a prompt, the answer so far, its end tokens, the most it may have."""

    prompt: tuple[int, ...] = (0,)
    answer: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    limit: int = 64


@dataclass(frozen=True)
class Situation:
    """Logits, and what came before them."""

    name: str
    row: Row
    past: Past = Past()


# Negative, positive and zero; no two are equal but for the one that is out.
_SIGNS = Row("signs", values=(2.0, -1.0, 0.5, 3.0, -2.0, 0.0, 1.25, -0.5, _GONE, 2.75, -3.5, 0.25))
_MIXED = Row("mixed", vocab=29, seed=6, spread=2.0, masked=4)
SITUATIONS: tuple[Situation, ...] = (
    Situation("first", _SIGNS, Past((3,), (), (4,), 9)),
    Situation("early", _SIGNS, Past((0, 1, 0, 3), (3,), (4, 9), 5)),
    Situation("middle", _MIXED, Past((1, 2, 3, 1, 2), (3, 1, 2, 4, 1, 2), (1, 4, 9), 8)),
    Situation("last", _MIXED, Past((5, 2, 5, 2, 7), (2, 7, 5, 2, 2, 7), (3,), 7)),
    Situation("endless", _SIGNS, Past((3, 6, 3), (6, 3, 6, 9), (), 5)),
)

Settings = Mapping[str, Any]

#: Settings by the stage that they ask about, of rows that nothing came before. The cuts alone are asked
#: at temperature 1.
_OF_ROWS: Mapping[str, tuple[Settings, ...]] = {
    "temperature": tuple({"temperature": t} for t in (0.3, 0.8, 1.6, 20.0)),
    "top_k": tuple({"top_k": k} for k in (1, 2, 7, 1000)),
    "top_p": tuple({"top_p": p} for p in (0.05, 0.5, 0.8, 0.97)),
    "min_p": tuple({"min_p": p} for p in (0.01, 0.1, 0.6, 1.0)),
    "typical_p": tuple({"typical_p": p} for p in (0.2, 0.5, 0.8, 0.95)),
    "epsilon_cutoff": tuple({"epsilon_cutoff": e} for e in (0.001, 0.02, 0.25, 0.6)),
    "eta_cutoff": tuple({"eta_cutoff": e} for e in (0.002, 0.05, 0.3, 0.9)),
    "order": (
        {"temperature": 1.7, "top_k": 30, "top_p": 0.7, "min_p": 0.02},
        {"temperature": 0.4, "top_k": 6, "top_p": 0.85},
        {"temperature": 2.5, "top_p": 0.9, "min_p": 0.15},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.6},
        {"temperature": 0.6, "top_k": 9, "min_p": 0.2},
        {"temperature": 1.4, "top_p": 0.9, "typical_p": 0.6},
        {"temperature": 1.2, "min_p": 0.1, "typical_p": 0.7},
        {"temperature": 2.0, "typical_p": 0.6, "epsilon_cutoff": 0.02},
        {"temperature": 1.6, "epsilon_cutoff": 0.02, "eta_cutoff": 0.2},
        {"temperature": 0.9, "top_k": 12, "eta_cutoff": 0.1},
    ),
}

#: Settings by stage, of what came before.
_OF_SITUATIONS: Mapping[str, tuple[Settings, ...]] = {
    "logit_bias": (
        {"logit_bias": {3: 1.5, 0: -2.25}},
        {"logit_bias": {8: 4.0, 11: 0.5, 5: 2.0}},
        {"logit_bias": {4: 100.0, 9: -100.0}},
    ),
    "repetition_penalty": tuple({"repetition_penalty": p} for p in (1.3, 0.7, 2.0)),
    "presence_penalty": tuple({"presence_penalty": p} for p in (0.75, -1.5)),
    "frequency_penalty": tuple({"frequency_penalty": p} for p in (0.5, -0.375)),
    "no_repeat_ngram_size": tuple({"no_repeat_ngram_size": n} for n in (1, 2, 3, 4, 5, 40)),
    "bad_words_ids": (
        {"bad_words_ids": [[2], [6]]},
        {"bad_words_ids": [[2, 7, 3], [7, 5], [1, 2, 0], [6, 9, 6]]},
        {"bad_words_ids": [[4], [3], [9, 4], [2, 9]]},  # end tokens, alone and not
        {
            "bad_words_ids": [[0, 3, 3, 6], [3, 9], [1, 2, 3, 0]]
        },  # begun in the prompt; or there alone
        {"bad_words_ids": [[9, 9, 9, 0, 1, 0, 3, 3, 6], [5, 3, 7]]},  # longer than some pasts
    ),
    "min_tokens": tuple({"min_tokens": n} for n in (1, 2, 6, 7)),
    "forced_bos_token_id": tuple({"forced_bos_token_id": token} for token in (0, 8)),
    "forced_eos_token_id": tuple({"forced_eos_token_id": token} for token in (4, 8)),
    "together": (
        {"temperature": 0.0, "logit_bias": {3: 1.5, 2: -2.0}, "repetition_penalty": 1.5},
        {
            "temperature": 0.0,
            "repetition_penalty": 1.25,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "no_repeat_ngram_size": 2,
            "min_tokens": 3,
            "top_k": 2,  # which without a draw is not asked
        },
        {
            "temperature": 0.0,
            "bad_words_ids": [[3], [4], [0]],
            "min_tokens": 7,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 3,
        },
        {"temperature": 0.7, "repetition_penalty": 1.3, "top_p": 0.9},
        {
            "temperature": 1.4,
            "presence_penalty": 0.25,
            "frequency_penalty": 0.5,
            "top_k": 8,
            "typical_p": 0.8,
        },
        {
            "temperature": 0.9,
            "logit_bias": {3: -1.0, 1: 3.0},
            "repetition_penalty": 1.5,
            "min_p": 0.05,
            "eta_cutoff": 0.05,
        },
        {
            "temperature": 1.3,
            "no_repeat_ngram_size": 2,
            "bad_words_ids": [[2], [3, 9]],
            "top_p": 0.95,
            "epsilon_cutoff": 0.03,
        },
        {
            "temperature": 2.0,
            "presence_penalty": 1.0,
            "min_tokens": 7,
            "forced_eos_token_id": 4,
            "typical_p": 0.6,
        },
    ),
}
SETTINGS: Mapping[str, tuple[Settings, ...]] = {**_OF_ROWS, **_OF_SITUATIONS}


def situations(stage: str) -> tuple[Situation, ...]:
    """What the settings of a stage are asked of."""
    return SITUATIONS if stage in _OF_SITUATIONS else tuple(Situation(r.name, r) for r in ROWS)


def from_json(settings: Settings) -> dict[str, Any]:
    """Settings with whole numbers for tokens again, which are the keys of a JSON object's biases."""
    bias = settings.get("logit_bias", {})
    read = {"logit_bias": {int(token): value for token, value in bias.items()}} if bias else {}
    return {**settings, **read}


@dataclass(frozen=True)
class Draws:
    """How often samplers of so many seeds draw, from which row with which settings: one test."""

    row: Row
    settings: Settings
    draws: int
    seeds: int = 1
    past: Past = Past()


#: The chance that a right sampler is called wrong, for each test; the seeds being fixed, once for all.
FALSE_ALARM = 1e-6
_DIE = Row("die", values=(0.0, 0.4, -0.7, _GONE, 0.9, -0.2, 1.3, _GONE, -0.4, 0.2))
DRAWS: tuple[Draws, ...] = (
    Draws(_DIE, {"temperature": 1.0}, 1000),
    Draws(_DIE, {"temperature": 1.8, "top_k": 6, "top_p": 0.95, "min_p": 0.3}, 1000),
    Draws(_DIE, {"temperature": 1.0}, 500, seeds=500),
    Draws(
        _DIE,
        {
            "temperature": 1.2,
            "logit_bias": {9: 0.5},
            "repetition_penalty": 1.5,
            "presence_penalty": 0.25,
            "frequency_penalty": 0.125,
            "no_repeat_ngram_size": 2,
        },
        1000,
        past=Past((6, 4, 6, 1), (2, 6, 2, 9, 6), (5,), 20),
    ),
    Draws(_DIE, {"temperature": 1.5, "typical_p": 0.9, "eta_cutoff": 0.3}, 1000),
)


def settled(row: Tensor, values: Tensor) -> Tensor:
    """`values` [V] of a row [V], in the row's order and, among equal logits, in their own.

    Which of equal tokens a cut keeps is left to a sort in the reference; how many, is not.
    """
    by_value = values.argsort(stable=True)
    order = by_value[row[by_value].argsort(stable=True)]
    return values[order]
