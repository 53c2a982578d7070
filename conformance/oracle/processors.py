"""transformers' logits processors: which run, and in which order, is what `generate` makes of a config.

Presence and frequency penalties it has not. They are written here as the OpenAI API's reference defines
them, and take the place that `generate` gives to processors of the caller's own: behind all of its own
but the cuts. In the engine they come before the bans. The distribution is the same, as what is banned
stays so whatever is added, and of what is forced only one token is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from conformance.decision_cases import Past, Settings, settled

#: Logits as they are, and stretched to see whether a rounding could decide what a cut keeps.
_STRETCHES = (1.0, 1 - 1e-4, 1 + 1e-4)
#: What transformers would do unasked, and its own names of settings.
_UNASKED: Settings = {"top_k": 0, "top_p": 1.0, "min_p": None}
_NAMES = {"min_tokens": "min_new_tokens"}
_COUNTED = ("presence_penalty", "frequency_penalty")


class CountPenalties(LogitsProcessor):
    """OpenAI's: logit j becomes mu[j] - c[j] * frequency - (c[j] > 0) * presence.

    c[j] is how often the answer has the token; it begins after `prompt` tokens.
    """

    def __init__(self, prompt: int, presence_penalty: float = 0.0, frequency_penalty: float = 0.0):
        self.prompt, self.presence, self.frequency = prompt, presence_penalty, frequency_penalty

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        answer = input_ids[0, self.prompt :]
        counts = torch.nn.functional.one_hot(answer, scores.shape[-1]).sum(0).double()
        taken = counts * self.frequency + (counts > 0) * self.presence
        return (scores.double() - taken).to(scores.dtype)


def config(settings: Settings, past: Past) -> GenerationConfig:
    """The settings in transformers' words, for an answer to that prompt."""
    asked = {_NAMES.get(key, key): value for key, value in settings.items() if key not in _COUNTED}
    temperature = float(asked.pop("temperature", 1.0))
    if bias := asked.pop("logit_bias", {}):
        asked["sequence_bias"] = [[[token], float(value)] for token, value in bias.items()]
    if temperature > 0:
        asked = {**_UNASKED, **asked, "do_sample": True, "temperature": temperature}
    made = GenerationConfig(
        max_length=len(past.prompt) + past.limit,
        eos_token_id=list(past.ends) or None,
        pad_token_id=0,
        **asked,
    )
    # What `generate` adds before it asks for processors.
    made._eos_token_tensor = torch.tensor(past.ends) if past.ends else None
    return made


def own_processors(settings: Settings, past: Past) -> LogitsProcessorList:
    """What the caller of `generate` adds to its own."""
    counted = {key: settings[key] for key in _COUNTED if settings.get(key)}
    return LogitsProcessorList([CountPenalties(len(past.prompt), **counted)] if counted else [])


def processed(model: Any, settings: Settings, logits: Tensor, past: Past) -> Tensor:
    """Log-probabilities [..., V] after what `generate` does to logits [..., V], in their dtype."""
    # Private, and the one place where transformers says which processors run, in which order.
    processors = model._get_logits_processor(
        config(settings, past),
        input_ids_seq_length=len(past.prompt),
        logits_processor=own_processors(settings, past),
        device="cpu",
    )
    rows = logits.reshape(-1, logits.shape[-1])
    tokens = torch.tensor([[*past.prompt, *past.answer]]).expand(len(rows), -1)
    scores: Tensor = processors(tokens, rows)
    return scores.log_softmax(-1).view_as(logits)


@dataclass(frozen=True)
class Truth:
    """Log-probabilities [V] in float64, and float32's error against them.

    `ranked` are those before the cuts, by which it is known what is equally likely. `stable` is False
    where a rounding decides which tokens are left.
    """

    ranked: Tensor
    values: Tensor
    error: float
    stable: bool


def truth(model: Any, settings: Settings, row: Tensor, past: Past) -> Truth:
    """What becomes of a row of logits [V]; there must be a token that is not banned."""
    stretched = torch.stack([row.double() * stretch for stretch in _STRETCHES])
    ranked = processed(model, {**settings, "temperature": 0.0}, stretched[0], past)
    values, *others = processed(model, settings, stretched, past)
    narrow = processed(model, settings, row, past)
    kept = settled(ranked, values).isfinite()
    stable = all(
        torch.equal(settled(ranked, other).isfinite(), kept) for other in (narrow, *others)
    )
    wrong = error(settled(ranked, narrow), settled(ranked, values))
    return Truth(ranked, values, wrong, stable)


def error(value: Tensor, truth: Tensor) -> float:
    """The largest error of log-probabilities relative to their row's largest magnitude."""
    kept = truth.isfinite()
    wrong = (value.double() - truth).masked_fill(~kept, 0).abs().amax(-1)
    scale = truth.masked_fill(~kept, 0).abs().amax(-1)
    worst = torch.where(scale > 0, wrong / scale, wrong)  # one token left: its logarithm is 0
    return float(worst.max())
