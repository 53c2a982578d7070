"""Greedy answers that are made of logits known before, whatever is chosen; and as `generate` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.decision_cases import LOGPROBS, NAME, Followed, Past, Settings
from conformance.oracle.capture import CLEAR
from conformance.oracle.processors import config, own_processors, processed
from engine.errors import LockstepError

#: What a request says besides what is done to logits.
_ELSE = {"max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "logprobs_mode", "seed"}
_GREEDY: Settings = {"temperature": 0.0}


@dataclass(frozen=True)
class Script:
    """A model's prompt, and float32 logits [steps, V] that every answer to it is made of.

    `noise` is float32's error of log-probabilities; choices within 100 times that are refused.
    """

    model: Any
    prompt: Sequence[int]
    logits: Tensor
    noise: float

    def follow(
        self, settings: Settings, ends: Sequence[int] = (), prompt: int | None = None
    ) -> tuple[list[int], Tensor]:
        """The answer, and what each of its tokens was chosen from: log-probabilities [n, V] in float64.

        Raises LockstepError where `generate` would choose otherwise from its own logits.
        """
        limit = min(settings["max_tokens"], len(self.logits))
        past = Past(tuple(self.prompt[:prompt]), (), tuple(ends), limit)
        asked = {**_GREEDY, **{k: v for k, v in settings.items() if k not in _ELSE}}
        ids, scores = self._followed(asked, past, self.logits.double())
        refuse_close_calls(scores, self.noise)
        if asked["temperature"] == 0:
            said, logits = self._generated(asked, past)
            if self._followed(asked, past, logits)[0] != said:
                raise LockstepError(f"{NAME}: generate chooses otherwise under {dict(settings)}")
        return ids, scores

    def _followed(self, asked: Settings, past: Past, logits: Tensor) -> tuple[list[int], Tensor]:
        scores: list[Tensor] = []
        for row in logits[: past.limit]:
            scores.append(processed(self.model, asked, row, past))
            token = int(scores[-1].argmax())
            past = dataclasses.replace(past, answer=(*past.answer, token))
            if token in past.ends:
                break
        return list(past.answer), torch.stack(scores)

    def _generated(self, asked: Settings, past: Past) -> tuple[list[int], Tensor]:
        """What `generate` answers, and its logits [n, V] before anything was done to them."""
        done = self.model.generate(
            torch.tensor([past.prompt]),
            attention_mask=torch.ones(1, len(past.prompt), dtype=torch.int64),
            generation_config=config(asked, past),
            logits_processor=own_processors(asked, past),
            output_logits=True,
            return_dict_in_generate=True,
        )
        return done.sequences[0, len(past.prompt) :].tolist(), torch.cat(done.logits)

    def answer(self, followed: Followed) -> dict[str, Any]:
        """A case with its answer; refused where the settings change it, or not, against what is said."""
        settings, n = followed.settings, followed.prompt
        ends = settings.get("stop_token_ids", ())
        ids, _ = self.follow(settings, ends, n)
        if (ids != self.logits.argmax(-1)[: len(ids)].tolist()) != followed.bites:
            raise LockstepError(f"{NAME}: {followed} does not bite as it was meant to")
        return {"settings": settings, "prompt": list(self.prompt[:n]), "token_ids": ids}


def refuse_close_calls(logprobs: Tensor, noise: float) -> None:
    """The best tokens of each step [steps, V], which are asked for in order, must be apart."""
    most = max(settings["logprobs"] for settings in LOGPROBS)
    best = logprobs.topk(most + 1).values
    gaps = best[:, :-1] - best[:, 1:]
    scale = logprobs[logprobs.isfinite()].abs().max()
    gap = float(gaps[best[:, 1:].isfinite()].min() / scale) if scale else 1.0
    if gap < CLEAR * noise:
        raise LockstepError(
            f"{NAME} is an unstable golden: two of the best tokens are {gap:.1e} apart"
        )
