"""transformers as the reference for decisions: writes their golden.

What becomes of logits is in `processors`, a greedy answer of them in `script`, its end in `endings`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from conformance.decision_cases import (
    DRAWS,
    ENDINGS,
    FALSE_ALARM,
    FOLLOWED,
    LOGPROBS,
    MODEL,
    NAME,
    PROMPT,
    ROWS,
    SETTINGS,
    TOKENS,
    Draws,
    Settings,
    situations,
)
from conformance.golden import write_manifest
from conformance.oracle.endings import ended, greedy
from conformance.oracle.model import load
from conformance.oracle.processors import error, processed, truth
from conformance.oracle.script import Script, refuse_close_calls
from conformance.oracle.text import Reference
from conformance.oracle.tiny import tiny_checkpoint
from conformance.text_vocabularies import ascii_only
from engine.errors import LockstepError

_POWER = 0.95


def capture_decisions(out: Path) -> None:
    """Writes the whole golden folder; refused where a rounding could decide an answer."""
    out.mkdir(parents=True)
    definition = ascii_only()
    reference = Reference(definition)
    prompt = reference.encode(PROMPT, add_special_tokens=False).ids
    sizes = {
        "vocab_size": len(definition["model"]["vocab"]) + len(definition["added_tokens"]),
        "max_position_embeddings": len(prompt) + TOKENS,
    }
    tiny_checkpoint(dataclasses.replace(MODEL, config={**MODEL.config, **sizes}), out)
    _write_json(out / "tokenizer.json", definition)
    model = load(out, torch.float64)
    logits, ids = greedy(model, prompt)

    logprobs = logits.double().log_softmax(-1)
    noise = {"logprobs": error(logits.log_softmax(-1), logprobs)}
    refuse_close_calls(logprobs, noise["logprobs"])
    script = Script(model, prompt, logits, noise["logprobs"])

    single: dict[str, Tensor] = {}
    for stage, situation, values, wrong in _asked(model):
        single[f"{stage}/{situation}"] = values
        noise[stage] = max(wrong, noise.get(stage, 0.0))

    asked_of = {stage: situations(stage) for stage in SETTINGS}
    known = {s.name: s for of_stage in asked_of.values() for s in of_stage}
    save_file(
        {s.row.name: s.row.logits() for s in known.values()}
        | single
        | {f"draw/{n}": _shares(model, draws) for n, draws in enumerate(DRAWS)}
        | {
            _truth(asked): script.follow(asked)[1]
            for asked in LOGPROBS
            if _truth(asked) != "logprobs"
        }
        | {"logits": logits, "logprobs": logprobs},
        out / "decisions.safetensors",
    )
    answers = {
        "situations": {
            s.name: {"row": s.row.name, "past": dataclasses.asdict(s.past)} for s in known.values()
        },
        "asked_of": {stage: [s.name for s in of_stage] for stage, of_stage in asked_of.items()},
        "settings": SETTINGS,
        "noise": noise,
        "greedy": {row.name: int(row.logits().argmax()) for row in ROWS},
        "false_alarm": FALSE_ALARM,
        "draws": [_draws(model, draws) for draws in DRAWS],
        "prompt": prompt,
        "ids": ids,
        "text": reference.decode(ids, skip_special_tokens=True),
        "followed": [script.answer(asked) for asked in FOLLOWED],
        "endings": [ended(script, out, reference, ending) for ending in ENDINGS],
        "logprobs": [{"settings": asked, "truth": _truth(asked)} for asked in LOGPROBS],
    }
    _write_json(out / "decisions.json", answers)
    write_manifest(
        out,
        {
            "case": NAME,
            "kind": "decisions",
            "command": f"lockstep golden capture {NAME}",
            "versions": {
                "transformers": transformers.__version__,
                "torch": torch.__version__.partition("+")[0],
            },
        },
    )


def _truth(asked: Settings) -> str:
    """The name of the distributions that log-probabilities are of."""
    processed = asked.get("logprobs_mode") == "processed"
    return f"logprobs/{LOGPROBS.index(asked)}" if processed else "logprobs"


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


# -- single choices --------------------------------------------------------------------------------


def _asked(model: Any) -> Iterator[tuple[str, str, Tensor, float]]:
    """Of every stage and situation: their names, truth [settings, V], and float32's error against it."""
    for stage, asked in SETTINGS.items():
        for situation in situations(stage):
            row = situation.row.logits()
            truths = [truth(model, settings, row, situation.past) for settings in asked]
            for settings, found in zip(asked, truths, strict=True):
                if not found.stable:
                    raise LockstepError(
                        f"{NAME} is an unstable golden: a rounding decides what {dict(settings)} keeps "
                        f"in the situation {situation.name}; change the settings"
                    )
            values = torch.stack([found.values for found in truths])
            yield stage, situation.name, values, max(found.error for found in truths)


# -- the draw --------------------------------------------------------------------------------------


def _shares(model: Any, draws: Draws) -> Tensor:
    """The exact distribution [V] that tokens are drawn from."""
    return processed(model, draws.settings, draws.row.logits().double(), draws.past).exp()


def _draws(model: Any, draws: Draws) -> dict[str, Any]:
    """What is drawn how often, and the smallest departure that the chi-square test finds.

    The departure is Cohen's w, the root of sum((q - p)^2 / p) over the tokens' shares p and q.
    """
    shares = _shares(model, draws)
    left = shares[shares > 0]
    if float(left.min()) * draws.draws < 20:
        raise LockstepError(f"{NAME}: a token is drawn too seldom for a chi-square test")
    freedom = len(left) - 1
    return {
        "logits": [x if x > -torch.inf else None for x in draws.row.logits().tolist()],
        "past": dataclasses.asdict(draws.past),
        "settings": draws.settings,
        "draws": draws.draws,
        "seeds": draws.seeds,
        "power": _POWER,
        "detects": round((_noncentrality(freedom) / draws.draws) ** 0.5, 4),
    }


def _noncentrality(freedom: int) -> float:
    """How far a chi-square variable must be displaced to be beyond FALSE_ALARM with _POWER."""
    limit = _root(lambda x: -_beyond(x, freedom, 0.0), -FALSE_ALARM)
    return _root(lambda shift: _beyond(limit, freedom, shift), _POWER)


def _beyond(x: float, freedom: int, shift: float) -> float:
    """P(X > x) of the noncentral chi-square distribution, as a Poisson mixture of central ones."""
    n = torch.arange(500, dtype=torch.float64)
    half = torch.tensor(shift / 2, dtype=torch.float64)
    weights = torch.exp(torch.xlogy(n, half) - half - torch.lgamma(n + 1))
    tails = torch.special.gammaincc(freedom / 2 + n, torch.full_like(n, x / 2))
    return float((weights * tails).sum())


def _root(rising: Any, value: float) -> float:
    """Where a rising function of 0 to 200 takes a value."""
    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high
