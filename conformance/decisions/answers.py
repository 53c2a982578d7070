"""Whole answers of the engine's own loop, which is fed the reference's logits."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from conformance.decision_cases import Settings, from_json, write_model
from conformance.decisions import sampling
from conformance.decisions.question import AGREES, Question, allowance, spelled, within
from conformance.scripted import Scripted
from engine.decoder import Decoder
from engine.generate import Completion, Engine, Piece, SamplingParams


def _fed(
    tensors: Mapping[str, Tensor], folder: Path, models: Path, files: Mapping[str, Any]
) -> Engine:
    """The golden's model with these files, in a folder of its own below `models`.

    Its loop gets the reference's logits, whatever tokens it chooses.
    """
    path = Path(tempfile.mkdtemp(dir=models))
    write_model(folder, path, files)
    engine = Engine.load(path)
    engine.decoder = cast("Decoder", Scripted(engine, tensors["logits"]))
    return engine


def about_text(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[Question]:
    engine = _fed(tensors, folder, models, {})
    ask = partial(_streamed, engine, golden["ids"])
    yield Question("tokenizer.stream", f"ids {golden['ids']}", golden["text"], ask)


def _streamed(engine: Engine, ids: list[int]) -> str:
    stream = engine.tokenizer.stream(skip_special_tokens=True)
    return "".join([*map(stream.push, ids), stream.flush()])


def about_history(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[Question]:
    """Whole answers under settings that look at the tokens so far."""
    engine = _fed(tensors, folder, models, {})
    needs = (
        *(f"sampling.{stage}" for stage in sampling.STAGES),
        "stopping.max_tokens",
        "stopping.stop_ids",
    )
    for followed in golden["followed"]:
        settings, prompt = followed["settings"], followed["prompt"]
        shown = f"{spelled(settings)} after {len(prompt)} tokens"
        ask = partial(_token_ids, engine, prompt, settings)
        yield Question("sampling.history", shown, followed["token_ids"], ask, needs)


def _token_ids(engine: Engine, prompt: list[int], settings: Settings) -> list[int]:
    return engine.generate(prompt, SamplingParams(**from_json(settings))).token_ids


def about_endings(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[Question]:
    """Answers that may end at once."""
    endings = [ending for ending in golden["endings"] if not ending["params"]["min_tokens"]]
    yield from _about(endings, golden["prompt"], tensors, folder, models, ())


def about_min_tokens(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[Question]:
    """Answers that may not, which takes knowing how much of one there is."""
    endings = [ending for ending in golden["endings"] if ending["params"]["min_tokens"]]
    needs = ("sampling.min_tokens", "sampling.history")
    yield from _about(endings, golden["prompt"], tensors, folder, models, needs)


def _about(
    endings: Sequence[Any],
    prompt: list[int],
    tensors: Mapping[str, Tensor],
    folder: Path,
    models: Path,
    rests_on: tuple[str, ...],
) -> Iterator[Question]:
    """The simplest first: what needs another stage is asked after that stage."""
    made = cache(lambda files: _fed(tensors, folder, models, json.loads(files)))
    for ending in sorted(endings, key=lambda ending: len(_uses(ending))):
        files, params, token_ids = ending["files"], ending["params"], ending["token_ids"]
        shown = f"{spelled(params)}, {spelled(files)}"
        engine = made(json.dumps(files))
        asked = SamplingParams(**params)
        complete = cache(partial(engine.generate, prompt, asked))
        stream = partial(engine.stream, prompt, asked)
        stage = f"stopping.{ending['stage']}"
        used = ("sampling.greedy", "tokenizer.stream", "stopping.text", *_uses(ending))
        needs = (*rests_on, *(name for name in used if name != stage))
        if stage == "stopping.text":
            ask = partial(_field, complete, "text", token_ids, ending["text"])
            yield Question(stage, shown, ending["text"], ask, needs)
        else:
            expected = [token_ids, ending["text"]]
            yield Question(stage, shown, expected, partial(_answered, complete), needs)
        reasons = [ending["finish_reason"], *[None] * (len(token_ids) - 1)]
        reasons.append(ending["finish_reason"])
        ask_reasons = partial(_reasons, complete, stream, token_ids, reasons)
        needs = (*needs, stage)
        yield Question("stopping.reason", shown, reasons, ask_reasons, needs)
        ask_usage = partial(_field, complete, "usage", token_ids, ending["usage"])
        yield Question("stopping.usage", shown, ending["usage"], ask_usage, needs)


def _uses(ending: Any) -> list[str]:
    """The stages that an ending depends on: those of the settings that are in use."""
    params = ending["params"]
    uses = {
        "max_tokens": True,
        "eos": any(
            value is not None for keys in ending["files"].values() for value in keys.values()
        ),
        "stop_ids": params["stop_token_ids"],
        "stop_text": params["stop"],
        "min_tokens": params["min_tokens"],
    }
    return [f"stopping.{stage}" for stage, used in uses.items() if used]


def _answered(complete: Callable[[], Completion]) -> list[Any]:
    done = complete()
    return [done.token_ids, done.text]


def _field(complete: Callable[[], Completion], what: str, token_ids: list[int], right: Any) -> Any:
    """A field of a completion; of other tokens than the reference's it would say nothing."""
    done = complete()
    return getattr(done, what) if done.token_ids == token_ids else right


def _reasons(
    complete: Callable[[], Completion],
    stream: Callable[[], Iterator[Piece]],
    token_ids: list[int],
    right: list[str | None],
) -> list[str | None]:
    """The completion's reason, then each streamed piece's; of other tokens they would say nothing."""
    done = complete()
    if done.token_ids != token_ids:
        return right
    return [done.finish_reason, *(piece.finish_reason for piece in stream())]


def about_logprobs(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[Question]:
    """Of the model's own distribution, and of what tokens were chosen from."""
    engine = _fed(tensors, folder, models, {})
    allowed = allowance(golden, "logprobs")
    for asked in golden["logprobs"]:
        settings, truth = asked["settings"], tensors[asked["truth"]]
        ask = partial(_logprobs, engine, golden["prompt"], from_json(settings), truth, allowed)
        used = ["greedy", *(stage for stage in sampling.STAGES if stage in settings)]
        used += ["draw"] * ("temperature" in settings)
        needs = (*(f"sampling.{stage}" for stage in used), "sampling.history")
        yield Question("logprobs", spelled(settings), AGREES, ask, needs)


def _logprobs(
    engine: Engine, prompt: list[int], settings: Settings, truth: Tensor, allowed: float
) -> str:
    """AGREES, or what differs in the entries from the distributions [steps, V]."""
    done = engine.generate(prompt, SamplingParams(**settings))
    entries = done.logprobs or []
    if [entry.token_id for entry in entries] != done.token_ids:
        return f"entries of {[entry.token_id for entry in entries]} for {done.token_ids}"
    for step, (entry, row) in enumerate(zip(entries, truth, strict=False)):
        left = int(row.isfinite().sum())
        best = row.topk(min(settings["logprobs"], left)).indices.tolist()
        if [token for token, _ in entry.top] != best:
            return f"step {step}: the best are {[token for token, _ in entry.top]}, not {best}"
        given = torch.tensor(
            [entry.logprob, *(value for _, value in entry.top)], dtype=torch.float64
        )
        scale = float(row[row.isfinite()].abs().max())
        said = within(given, row[[entry.token_id, *best]], scale, allowed)
        if said != AGREES:
            return f"step {step}: {said}"
    return AGREES
