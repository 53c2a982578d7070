"""transformers as the reference for decisions: its logits processors, its greedy choice, its endings.

Which cuts run, and in which order, is what `generate` itself makes of a GenerationConfig. Where an
answer ends is where `generate` ends it. transformers has no finish reason, no usage and no text cut
before a stop string; there the OpenAI API's meaning is the rule, applied to the reference's ids and text:

- the end tokens are those of the request and, unless `ignore_eos`, those of every file that names some;
- the end token belongs to the ids and the count, and its text is not shown;
- a stop string counts in the answer alone; the text ends before it, with the token that completed it
  among the ids;
- the reason is "stop" at an end token or stop string, also at the last token allowed, else "length".
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig

from conformance.decision_cases import (
    ABSENT,
    DRAWS,
    ENDINGS,
    FALSE_ALARM,
    LOGPROBS,
    MODEL,
    NAME,
    PROMPT,
    ROWS,
    SETTINGS,
    TOKENS,
    Draws,
    Ending,
    Settings,
    settled,
    write_model,
)
from conformance.golden import write_manifest
from conformance.oracle.capture import CLEAR
from conformance.oracle.model import load
from conformance.oracle.text import Reference, answer_stop
from conformance.oracle.tiny import tiny_checkpoint
from conformance.text_vocabularies import ascii_only
from engine.errors import LockstepError

#: How far logits are stretched to see whether a rounding could decide what a cut keeps.
_NEAR_ONE = (1 - 1e-4, 1 + 1e-4)
_POWER = 0.95
_NO_CUT: Settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": None}


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
    logits, ids = _greedy(model, prompt)

    warped = {f"{stage}/{row.name}": _warped(model, stage, row.logits()) for stage, row in _asked()}
    noise: dict[str, float] = {}
    for (stage, _), (_, error) in zip(_asked(), warped.values(), strict=True):
        noise[stage] = max(error, noise.get(stage, 0.0))
    logprobs = logits.double().log_softmax(-1)
    noise["logprobs"] = _error(logits.log_softmax(-1), logprobs)
    _refuse_close_calls(logprobs, noise["logprobs"])

    save_file(
        {row.name: row.logits() for row in ROWS}
        | {name: truth for name, (truth, _) in warped.items()}
        | {f"draw/{n}": _shares(model, draws) for n, draws in enumerate(DRAWS)}
        | {"logits": logits, "logprobs": logprobs},
        out / "decisions.safetensors",
    )
    answers = {
        "settings": SETTINGS,
        "noise": noise,
        "greedy": {row.name: int(row.logits().argmax()) for row in ROWS},
        "false_alarm": FALSE_ALARM,
        "draws": [_draws(model, draws) for draws in DRAWS],
        "prompt": prompt,
        "ids": ids,
        "text": reference.decode(ids, skip_special_tokens=True),
        "endings": [_ended(model, out, reference, prompt, ids, ending) for ending in ENDINGS],
        "logprobs": LOGPROBS,
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


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


# -- the cuts --------------------------------------------------------------------------------------


def _asked() -> Iterator[tuple[str, Any]]:
    return ((stage, row) for stage in SETTINGS for row in ROWS)


def _processed(model: Any, settings: Settings, logits: Tensor) -> Tensor:
    """Log-probabilities [V] after what `generate` does to logits [V], in their dtype."""
    config = GenerationConfig(do_sample=True, **{**_NO_CUT, **settings})
    # Private, and the one place where transformers says which processors run, in which order.
    processors = model._get_logits_processor(config, device="cpu")
    scores: Tensor = processors(torch.zeros(1, 1, dtype=torch.int64), logits[None])
    return scores[0].log_softmax(-1)


def _warped(model: Any, stage: str, row: Tensor) -> tuple[Tensor, float]:
    """Truth [settings, V] of a row under each setting of a stage, and float32's error against it."""
    truths, errors = [], []
    for settings in SETTINGS[stage]:
        truth = _processed(model, settings, row.double())
        narrow = _processed(model, settings, row)
        kept = settled(row, truth).isfinite()
        stretched = (_processed(model, settings, row.double() * s) for s in _NEAR_ONE)
        for other in (narrow, *stretched):
            if not torch.equal(settled(row, other).isfinite(), kept):
                raise LockstepError(
                    f"{NAME} is an unstable golden: a rounding decides what {dict(settings)} keeps "
                    f"of a row of {len(row)} logits; change the settings"
                )
        truths.append(truth)
        errors.append(_error(settled(row, narrow), settled(row, truth)))
    return torch.stack(truths), max(errors)


def _error(value: Tensor, truth: Tensor) -> float:
    """The largest error of log-probabilities relative to their row's largest magnitude."""
    kept = truth.isfinite()
    error = (value.double() - truth).masked_fill(~kept, 0).abs().amax(-1)
    scale = truth.masked_fill(~kept, 0).abs().amax(-1)
    worst = torch.where(scale > 0, error / scale, error)  # one token left: its logarithm is 0
    return float(worst.max())


# -- the draw --------------------------------------------------------------------------------------


def _shares(model: Any, draws: Draws) -> Tensor:
    """The exact distribution [V] that tokens are drawn from."""
    return _processed(model, draws.settings, draws.row.logits().double()).exp()


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


# -- the endings -----------------------------------------------------------------------------------


def _greedy(model: Any, prompt: list[int]) -> tuple[Tensor, list[int]]:
    """Logits float32 [TOKENS, V] of the greedy answer that nothing ends, and its ids."""
    done = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.cat(done.logits).float(), done.sequences[0, len(prompt) :].tolist()


def _refuse_close_calls(logprobs: Tensor, noise: float) -> None:
    """The best tokens, which are asked for in order, must be apart."""
    most = max(settings["logprobs"] for settings in LOGPROBS)
    best = logprobs.topk(most + 1).values
    gap = float((best[:, :-1] - best[:, 1:]).min() / logprobs.abs().max())
    if gap < CLEAR * noise:
        raise LockstepError(
            f"{NAME} is an unstable golden: two of the best tokens are {gap:.1e} apart"
        )


def _ended(
    model: Any, folder: Path, reference: Reference, prompt: list[int], ids: list[int], e: Ending
) -> dict[str, Any]:
    """An ending with what comes of it."""
    absent = min(set(range(len(ids) + 1)) - set(ids))

    def named(places: int | tuple[int, ...] | None) -> Any:
        if isinstance(places, tuple):
            return [named(place) for place in places]
        return places if places is None else absent if places == ABSENT else ids[places]

    files: dict[str, dict[str, Any]] = {
        "config.json": {"eos_token_id": named(e.config)},
        "tokenizer_config.json": {"eos_token": e.tokenizer},
    }
    if e.generation_config is not None:
        files["generation_config.json"] = {"eos_token_id": named(e.generation_config)}
    stop_ids = named(e.stop_token_ids)
    ends = set(stop_ids)
    if not e.ignore_eos:
        for value in (named(e.config), named(e.generation_config)):
            ends |= set(value if isinstance(value, list) else [value] * (value is not None))
        if e.tokenizer is not None:
            ends |= set(reference.encode(e.tokenizer, add_special_tokens=False).ids)
    room = min(e.max_tokens, len(ids))
    token_ids = _generated(model, prompt, room, eos_token_id=sorted(ends) or None)
    answer = answer_stop(reference.decode(token_ids, skip_special_tokens=True), e.stop)
    if answer["matched"]:
        shown = (reference.decode(token_ids[:n], True) for n in range(1, room + 1))
        token_ids = token_ids[: 1 + [answer_stop(s, e.stop)["matched"] for s in shown].index(True)]
    _agree_with_generate(folder, model, prompt, room, e, files, ends, token_ids)
    ended = token_ids[-1] in ends
    text = reference.decode(token_ids[:-1] if ended else token_ids, skip_special_tokens=True)
    answer = answer_stop(text, e.stop)
    reason = "stop" if ended or answer["matched"] else "length"
    if (reason == "stop") != e.bites:
        raise LockstepError(f"{NAME}: {e} does not end as it was meant to")
    return {
        "stage": e.stage,
        "files": files,
        "params": {
            "max_tokens": e.max_tokens,
            "stop": e.stop,
            "stop_token_ids": stop_ids,
            "ignore_eos": e.ignore_eos,
        },
        "token_ids": token_ids,
        "text": answer["shown"],
        "finish_reason": reason,
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(token_ids),
            "total_tokens": len(prompt) + len(token_ids),
        },
    }


def _generated(model: Any, prompt: list[int], room: int, **how: Any) -> list[int]:
    given = {key: value for key, value in how.items() if value is not None}
    row = torch.tensor([prompt])
    mask = torch.ones_like(row)
    done = model.generate(
        row, attention_mask=mask, max_new_tokens=room, do_sample=False, pad_token_id=0, **given
    )
    answer: list[int] = done[0, len(prompt) :].tolist()
    return answer


def _agree_with_generate(
    folder: Path,
    model: Any,
    prompt: list[int],
    room: int,
    e: Ending,
    files: Mapping[str, Mapping[str, Any]],
    ends: set[int],
    token_ids: Sequence[int],
) -> None:
    """`generate` must end there too, from the model's own files and with its own stop criteria."""
    own = [part for part in (e.config, e.generation_config, e.tokenizer) if part is not None]
    if e.stop:
        how = {
            "stop_strings": list(e.stop),
            "tokenizer": AutoTokenizer.from_pretrained(str(folder)),
        }
        said = _generated(model, prompt, room, eos_token_id=sorted(ends) or None, **how)
        agrees = (said == token_ids) != e.across_prompt
    elif len(own) == 1 and not (e.tokenizer or e.stop_token_ids or e.ignore_eos):
        with tempfile.TemporaryDirectory() as twin:
            write_model(folder, Path(twin), files)
            agrees = _generated(load(Path(twin), torch.float64), prompt, room) == token_ids
    else:  # it reads one file, and knows no ids of a request beside it
        return
    if not agrees:
        raise LockstepError(f"{NAME}: generate does not end as the rule says: {e}")
