"""Sampling, stopping and log-probabilities in lockstep: the engine's own loop, fed the reference's logits.

Each stage is given the reference's inputs, so that a fault is blamed on its own stage. The answers
come from the decisions golden; see `conformance.oracle.decisions`, which writes them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.decision_cases import settled, write_model
from conformance.envelope import K, half_step
from conformance.scripted import Scripted
from conformance.text import TextFinding
from engine.decoder import Decoder
from engine.generate import Completion, Engine, Piece, SamplingParams
from engine.generate import processors as sampling
from engine.generate.sample import Sampler

#: In the order in which logits meet them; the first with a finding is the one to look at.
STAGES = (
    "sampling.temperature",
    "sampling.top_k",
    "sampling.top_p",
    "sampling.min_p",
    "sampling.order",
    "sampling.greedy",
    "sampling.draw",
    "tokenizer.stream",
    "stopping.text",
    "stopping.max_tokens",
    "stopping.eos",
    "stopping.stop_ids",
    "stopping.stop_text",
    "stopping.reason",
    "stopping.usage",
    "logprobs",
)
_CUTS = ("top_k", "top_p", "min_p")
_SEEDS = range(3)
_FEW = 12  # draws; two seeds agree on all of them by chance once in 7e8 times


@dataclass(frozen=True)
class _Question:
    """What a stage is asked, and the reference's answer, with which `answer` must agree.

    `needs` are stages that the answer also rests on: where one of them is guilty, it says nothing.
    """

    stage: str
    shown: str
    expected: Any
    answer: Callable[[], Any]
    needs: tuple[str, ...] = ()


def check_decisions(folder: Path) -> list[TextFinding]:
    """Returns what differs from the golden's answers, in the order of the stages.

    A stage that raises has answered with its error. An error while loading is the caller's.
    """
    golden = json.loads((folder / "decisions.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "decisions.safetensors")
    findings: list[TextFinding] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-") as models:
        for questions in (
            _about_cuts(golden, tensors),
            _about_all_cuts(golden, tensors),
            _about_choices(golden, tensors),
            _about_text(golden, tensors, folder, Path(models)),
            _about_endings(golden, tensors, folder, Path(models)),
            _about_logprobs(golden, tensors, folder, Path(models)),
        ):
            findings += _differences(questions, {found.stage for found in findings})
    return sorted(findings, key=lambda found: STAGES.index(found.stage))


def _differences(questions: Iterator[_Question], guilty: set[str]) -> Iterator[TextFinding]:
    """`guilty` are the stages found so far; what needs one of them is not asked."""
    guilty = set(guilty)
    for question in questions:
        if not guilty.isdisjoint(question.needs):
            continue
        try:
            got = question.answer()
        except Exception as error:  # whatever a faulty stage raises is what it answers
            got = repr(error)
        if got != question.expected:
            guilty.add(question.stage)
            yield TextFinding(question.stage, question.shown, question.expected, got)


# -- sampling --------------------------------------------------------------------------------------


def _about_cuts(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[_Question]:
    """Temperature, and each cut by itself on logits as they are."""
    for stage in ("temperature", *_CUTS):
        for shown, settings, row, agree in _rows(stage, golden, tensors):
            ask = partial(_alone, stage, settings, row)
            yield _Question(f"sampling.{stage}", shown, AGREES, partial(agree, ask))


def _about_all_cuts(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[_Question]:
    """Each cut as a request asks for it, then several, in the reference's order."""
    for stage in (*_CUTS, "order"):
        needs = ["sampling.temperature", f"sampling.{stage}"]
        if stage == "order":
            needs = [f"sampling.{name}" for name in ("temperature", *_CUTS)]
        for shown, settings, row, agree in _rows(stage, golden, tensors):
            ask = partial(_processed, settings, row)
            name = f"sampling.{stage}"
            yield _Question(name, shown, AGREES, partial(agree, ask), tuple(needs))


AGREES = "the reference's log-probabilities"
_Agree = Callable[[Callable[[], Tensor]], str]


def _rows(
    stage: str, golden: Any, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, dict[str, Any], Tensor, _Agree]]:
    """Every row under every setting of a stage, and how an answer is compared with its truth."""
    allowed = _allowance(golden, stage)
    for name in golden["greedy"]:
        row = tensors[name]
        truths = tensors[f"{stage}/{name}"]
        for settings, truth in zip(golden["settings"][stage], truths, strict=True):
            shown = f"{_spelled(settings)} of the row {name}"
            yield shown, settings, row, partial(_agree, row, truth, allowed)


def _allowance(golden: Any, stage: str) -> float:
    """What float32 may differ by from the truth, relative to the row's largest log-probability."""
    return K["lockstep"] * float(golden["noise"][stage]) + half_step(torch.float32)


def _alone(stage: str, settings: Mapping[str, Any], row: Tensor) -> Tensor:
    if stage == "temperature":
        return _processed(settings, row)
    cut: Callable[[Tensor, Any], Tensor] = getattr(sampling, stage)
    return cut(row.double(), settings[stage])


def _processed(settings: Mapping[str, Any], row: Tensor) -> Tensor:
    return sampling.processed(row, SamplingParams(**{"temperature": 1.0, **settings}))


def _agree(row: Tensor, truth: Tensor, allowed: float, ask: Callable[[], Tensor]) -> str:
    """AGREES, or how the answer [V] differs from the truth [V] of a row [V]."""
    got = ask().double()
    if got.shape != truth.shape:
        return f"the shape {list(got.shape)}, not {list(truth.shape)}"
    value, truth = settled(row, got.log_softmax(-1)), settled(row, truth)
    kept = truth.isfinite()
    if not torch.equal(value > -torch.inf, kept):
        return f"{int((value > -torch.inf).sum())} tokens are left, not {int(kept.sum())}"
    return _within(value[kept], truth[kept], float(truth[kept].abs().max()), allowed)


def _within(value: Tensor, truth: Tensor, scale: float, allowed: float) -> str:
    """AGREES, or by how much the farthest of some log-probabilities is off; NaN is outside."""
    error = float((value - truth).abs().max()) / (scale or 1.0)
    if error <= allowed:
        return AGREES
    return f"off by {error:.1e} of the row's scale, where {allowed:.1e} is allowed"


def _about_choices(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[_Question]:
    for name, token in golden["greedy"].items():
        ask = partial(_chosen, tensors[name], SamplingParams(), 3)
        yield _Question("sampling.greedy", f"the row {name}", [token] * 3, ask)
    for n, draws in enumerate(golden["draws"]):
        logits = torch.tensor([-torch.inf if x is None else x for x in draws["logits"]])
        settings = draws["settings"]
        needs = tuple(f"sampling.{stage}" for stage in ("temperature", *_CUTS, "order"))
        for expected, ask_draws in (
            (_FAIR, partial(_drawn, draws, logits, tensors[f"draw/{n}"], golden["false_alarm"])),
            (_SEEDED, partial(_repeats, logits, settings)),
        ):
            shown = f"draws with {_spelled(settings)}"
            yield _Question("sampling.draw", shown, expected, ask_draws, needs)


_FAIR = "shares that chance explains"
_SEEDED = "the same again with the same seed, another with another"


def _chosen(logits: Tensor, params: SamplingParams, n: int) -> list[int]:
    sampler = Sampler(params)
    return [sampler(logits) for _ in range(n)]


def _drawn(draws: Any, logits: Tensor, shares: Tensor, false_alarm: float) -> str:
    """_FAIR, or how unlikely the draws are if their shares were the exact ones [V]."""
    tokens: list[int] = []
    for seed in range(draws["seeds"]):
        params = SamplingParams(seed=seed, **draws["settings"])
        tokens += _chosen(logits, params, draws["draws"] // draws["seeds"])
    p = p_value(tokens, shares)
    return _FAIR if p >= false_alarm else f"p = {p:.1e}, where {false_alarm:g} is allowed"


def p_value(tokens: Sequence[int], shares: Tensor) -> float:
    """How often chance alone departs that far from `shares` [V]: Pearson's chi-square test."""
    counts = Counter(tokens)
    left = shares.nonzero()[:, 0].tolist()
    if not counts.keys() <= set(left):
        return 0.0  # a token that has no share
    wanted = shares[left] * len(tokens)
    seen = torch.tensor([counts[token] for token in left], dtype=torch.float64)
    statistic = ((seen - wanted).square() / wanted).sum()
    freedom = torch.tensor((len(left) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def _repeats(logits: Tensor, settings: Mapping[str, Any]) -> str:
    """Whether seeds, and nothing else, decide what is drawn."""
    runs: list[list[int]] = []
    with torch.random.fork_rng(devices=[]):
        for seed in (*_SEEDS, *_SEEDS):
            torch.manual_seed(len(runs))
            runs.append(_chosen(logits, SamplingParams(seed=seed, **settings), _FEW))
    first, again = runs[: len(_SEEDS)], runs[len(_SEEDS) :]
    if first != again:
        return "something else with the same seed"
    if len({tuple(run) for run in first}) < len(_SEEDS):
        return "the same with another seed"
    return _SEEDED


# -- stopping --------------------------------------------------------------------------------------


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


def _about_text(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[_Question]:
    engine = _fed(tensors, folder, models, {})
    ask = partial(_streamed, engine, golden["ids"])
    yield _Question("tokenizer.stream", f"ids {golden['ids']}", golden["text"], ask)


def _streamed(engine: Engine, ids: list[int]) -> str:
    stream = engine.tokenizer.stream(skip_special_tokens=True)
    return "".join([*map(stream.push, ids), stream.flush()])


def _about_endings(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[_Question]:
    """The simplest first: what needs another stage is asked after that stage."""
    made = cache(lambda files: _fed(tensors, folder, models, json.loads(files)))
    for ending in sorted(golden["endings"], key=lambda ending: len(_uses(ending))):
        files, params, token_ids = ending["files"], ending["params"], ending["token_ids"]
        shown = f"{_spelled(params)}, {_spelled(files)}"
        engine = made(json.dumps(files))
        asked = SamplingParams(**params)
        complete = cache(partial(engine.generate, golden["prompt"], asked))
        stream = partial(engine.stream, golden["prompt"], asked)
        stage = f"stopping.{ending['stage']}"
        used = ("sampling.greedy", "tokenizer.stream", "stopping.text", *_uses(ending))
        needs = tuple(name for name in used if name != stage)
        if stage == "stopping.text":
            ask = partial(_field, complete, "text", token_ids, ending["text"])
            yield _Question(stage, shown, ending["text"], ask, needs)
        else:
            expected = [token_ids, ending["text"]]
            yield _Question(stage, shown, expected, partial(_answered, complete), needs)
        reasons = [ending["finish_reason"], *[None] * (len(token_ids) - 1)]
        reasons.append(ending["finish_reason"])
        ask_reasons = partial(_reasons, complete, stream, token_ids, reasons)
        needs = (*needs, stage)
        yield _Question("stopping.reason", shown, reasons, ask_reasons, needs)
        ask_usage = partial(_field, complete, "usage", token_ids, ending["usage"])
        yield _Question("stopping.usage", shown, ending["usage"], ask_usage, needs)


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


def _about_logprobs(
    golden: Any, tensors: Mapping[str, Tensor], folder: Path, models: Path
) -> Iterator[_Question]:
    engine = _fed(tensors, folder, models, {})
    allowed = _allowance(golden, "logprobs")
    for settings in golden["logprobs"]:
        ask = partial(_logprobs, engine, golden["prompt"], settings, tensors["logprobs"], allowed)
        yield _Question("logprobs", _spelled(settings), AGREES, ask, ("sampling.greedy",))


def _logprobs(
    engine: Engine, prompt: list[int], settings: Mapping[str, Any], truth: Tensor, allowed: float
) -> str:
    """AGREES, or what differs in the entries from the model's own distribution [steps, V]."""
    done = engine.generate(prompt, SamplingParams(**settings))
    entries = done.logprobs or []
    if [entry.token_id for entry in entries] != done.token_ids:
        return f"entries of {[entry.token_id for entry in entries]} for {done.token_ids}"
    for step, (entry, row) in enumerate(zip(entries, truth, strict=False)):
        best = row.topk(settings["logprobs"]).indices.tolist()
        if [token for token, _ in entry.top] != best:
            return f"step {step}: the best are {[token for token, _ in entry.top]}, not {best}"
        given = torch.tensor(
            [entry.logprob, *(value for _, value in entry.top)], dtype=torch.float64
        )
        said = _within(given, row[[entry.token_id, *best]], float(row.abs().max()), allowed)
        if said != AGREES:
            return f"step {step}: {said}"
    return AGREES


def _spelled(settings: Mapping[str, Any]) -> str:
    """Settings as a report shows them, without those that ask for nothing."""
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value) or "no settings"
