"""What the decisions golden asks: rows of logits, settings of the cuts, and endings; no answers.

A decision is what becomes of logits: which token, with which log-probability, and whether it is the
last. Rows are drawn with a seed, or written out where a boundary must be met exactly.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.cases import Case

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

Settings = Mapping[str, Any]

#: Settings by the stage that they ask about; the cuts alone are asked at temperature 1.
SETTINGS: Mapping[str, tuple[Settings, ...]] = {
    "temperature": tuple({"temperature": t} for t in (0.3, 0.8, 1.6, 20.0)),
    "top_k": tuple({"top_k": k} for k in (1, 2, 7, 1000)),
    "top_p": tuple({"top_p": p} for p in (0.05, 0.5, 0.8, 0.97)),
    "min_p": tuple({"min_p": p} for p in (0.01, 0.1, 0.6, 1.0)),
    "order": (
        {"temperature": 1.7, "top_k": 30, "top_p": 0.7, "min_p": 0.02},
        {"temperature": 0.4, "top_k": 6, "top_p": 0.85},
        {"temperature": 2.5, "top_p": 0.9, "min_p": 0.15},
        {"temperature": 1.0, "top_k": 3, "top_p": 0.6},
        {"temperature": 0.6, "top_k": 9, "min_p": 0.2},
    ),
}


@dataclass(frozen=True)
class Draws:
    """How often samplers of so many seeds draw, from which row with which settings: one test."""

    row: Row
    settings: Settings
    draws: int
    seeds: int = 1


#: The chance that a right sampler is called wrong, for each test; the seeds being fixed, once for all.
FALSE_ALARM = 1e-6
_DIE = Row("die", values=(0.0, 0.4, -0.7, _GONE, 0.9, -0.2, 1.3, _GONE, -0.4, 0.2))
DRAWS: tuple[Draws, ...] = (
    Draws(_DIE, {"temperature": 1.0}, 1000),
    Draws(_DIE, {"temperature": 1.8, "top_k": 6, "top_p": 0.95, "min_p": 0.3}, 1000),
    Draws(_DIE, {"temperature": 1.0}, 500, seeds=500),
)

#: The model whose greedy answer is ended in many ways. Its context leaves room for TOKENS tokens.
PROMPT = "The unhappy others gathered there"
TOKENS = 16
MODEL = Case(
    NAME,
    "llama",
    {
        "vocab_size": 0,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-2,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    seed=79,
)


@dataclass(frozen=True)
class Ending:
    """One way to end the model's answer. End tokens are named by their place in the answer.

    `config`, `generation_config` and `tokenizer` say what those files name as end tokens, None that
    they name none; ABSENT is a token that the answer lacks. `bites` is False where nothing may end
    before `max_tokens`, `across_prompt` where the stop string begins in the prompt.
    """

    stage: str
    max_tokens: int = TOKENS
    config: int | tuple[int, ...] | None = None
    generation_config: int | tuple[int, ...] | None = None
    tokenizer: str | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    bites: bool = True
    across_prompt: bool = False


ABSENT = -1

#: The answer is: ashes, return, ed, _g, gh, __, _g, ~, _100, ch, <|im_end|>, athered, ____, _g, }, !!!
ENDINGS: tuple[Ending, ...] = (
    Ending("text", bites=False),
    Ending("max_tokens", max_tokens=1, bites=False),
    Ending("max_tokens", max_tokens=2, bites=False),
    Ending("max_tokens", max_tokens=7, bites=False),
    Ending("max_tokens", max_tokens=100, bites=False),  # the context ends first
    Ending("max_tokens", generation_config=4, max_tokens=4, bites=False),
    Ending("eos", generation_config=4),
    Ending("eos", generation_config=0),
    Ending("eos", generation_config=(4, 7)),
    Ending("eos", generation_config=(7, 4)),
    Ending("eos", generation_config=(ABSENT, 2)),
    Ending("eos", config=4),
    Ending("eos", config=(ABSENT, 1)),
    Ending("eos", config=5, generation_config=9),
    Ending("eos", config=9, generation_config=5),
    Ending("eos", generation_config=ABSENT, tokenizer="<|im_end|>"),
    Ending("eos", tokenizer="<|im_end|>"),
    Ending("eos", generation_config=4, max_tokens=5),  # the end token is the last one allowed
    Ending("eos", config=4, generation_config=2, ignore_eos=True, bites=False),
    Ending("stop_ids", stop_token_ids=(4,)),
    Ending("stop_ids", stop_token_ids=(ABSENT, 2)),
    Ending("stop_ids", stop_token_ids=(7, 1)),
    Ending("stop_ids", generation_config=9, stop_token_ids=(2,)),
    Ending("stop_ids", generation_config=2, stop_token_ids=(9,)),
    Ending("stop_ids", generation_config=2, stop_token_ids=(5,), ignore_eos=True),
    Ending("stop_ids", stop_token_ids=(4,), max_tokens=5),
    Ending("stop_text", stop=("tu",)),  # within a token, whose rest is not shown either
    Ending("stop_text", stop=("rne",)),  # from the middle of a token to the middle of the next
    Ending("stop_text", stop=("esreturned g",)),
    Ending("stop_text", stop=("gh",)),  # after one g that is followed by another
    Ending("stop_text", stop=("~", " g~", "!!!")),  # two end together: the one that starts first
    Ending("stop_text", stop=("zzz", "ret")),
    Ending("stop_text", stop=("ned",), max_tokens=3),
    Ending("stop_text", stop=("ghost",), max_tokens=5, bites=False),  # gh is held back, and shown
    Ending("stop_text", stop=("ghost",), generation_config=5),
    Ending("stop_text", stop=("reashes",), bites=False, across_prompt=True),
)

#: What is asked of the log-probabilities; with a temperature, tokens are drawn.
LOGPROBS: tuple[Settings, ...] = (
    {"max_tokens": 8, "logprobs": 0},
    {"max_tokens": TOKENS, "logprobs": 6},
    {"max_tokens": 8, "logprobs": 3, "temperature": 2.0, "top_k": 20, "seed": 5},
)


def settled(row: Tensor, values: Tensor) -> Tensor:
    """`values` [V] of a row [V], in the row's order and, among equal logits, in their own.

    Which of equal tokens a cut keeps is left to a sort in the reference; how many, is not.
    """
    by_value = values.argsort(stable=True)
    order = by_value[row[by_value].argsort(stable=True)]
    return values[order]


def write_model(golden: Path, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """The golden's model in a folder of its own, with these keys in these of its files."""
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(golden / name, folder / name)
    config = json.loads((golden / "config.json").read_text(encoding="utf-8"))
    for name, keys in {"config.json": {}, **files}.items():
        whole = config | keys if name == "config.json" else keys
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")
