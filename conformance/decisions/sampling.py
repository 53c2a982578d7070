"""The processors, one by one and together, and the choice of a token from what they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.decision_cases import Settings, from_json, settled
from conformance.decisions.question import AGREES, Question, allowance, spelled, within
from engine.generate import SamplingParams, processors
from engine.generate.processors import NO_HISTORY, History
from engine.generate.sample import Sampler

#: In the order in which logits meet them.
PENALTIES = (
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "min_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
CUTS = ("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
#: One cut's threshold is another's, computed otherwise.
_RESTS_ON = {"eta_cutoff": ("epsilon_cutoff",)}
STAGES = (*PENALTIES, "temperature", *CUTS, "order", "together", "greedy", "draw")
_SEEDS = range(3)
_FEW = 12  # draws; two seeds agree on all of them by chance once in 7e8 times


def _named(stages: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"sampling.{stage}" for stage in stages)


def about_each(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[Question]:
    """Each penalty and ban, temperature, and each cut by itself on logits as they are."""
    for stage in PENALTIES:
        yield from _about(stage, _penalised, golden, tensors)
    yield from _about("temperature", _processed, golden, tensors)
    for stage in CUTS:
        yield from _about(stage, partial(_cut, stage), golden, tensors, _RESTS_ON.get(stage, ()))


def about_all(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[Question]:
    """Each cut as a request asks for it, then several, then all of it, in the reference's order."""
    for stage in CUTS:
        needs: tuple[str, ...] = ("temperature", stage, *_RESTS_ON.get(stage, ()))
        yield from _about(stage, _processed, golden, tensors, needs)
    yield from _about("order", _processed, golden, tensors, ("temperature", *CUTS))
    needs = (*PENALTIES, "temperature", *CUTS, "order")
    yield from _about("together", _processed, golden, tensors, needs)


_Answer = Callable[[Tensor, Settings, History], Tensor]


def _about(
    stage: str,
    answer: _Answer,
    golden: Any,
    tensors: Mapping[str, Tensor],
    needs: Sequence[str] = (),
) -> Iterator[Question]:
    """All settings of a stage in all of its situations."""
    allowed = allowance(golden, stage)
    for name in golden["asked_of"][stage]:
        row, history = _situation(golden["situations"][name], tensors)
        truths = tensors[f"{stage}/{name}"]
        for settings, truth in zip(golden["settings"][stage], truths, strict=True):
            ask = partial(answer, row, from_json(settings), history)
            agree = partial(_agree, row, truth, allowed, ask)
            shown = f"{spelled(settings)} in the situation {name}"
            yield Question(f"sampling.{stage}", shown, AGREES, agree, _named(needs))


def _situation(situation: Any, tensors: Mapping[str, Tensor]) -> tuple[Tensor, History]:
    return tensors[situation["row"]], _history(situation["past"])


def _history(past: Any) -> History:
    return History(past["prompt"], past["answer"], frozenset(past["ends"]), past["limit"])


def _penalised(row: Tensor, settings: Settings, history: History) -> Tensor:
    return processors.penalised(row, SamplingParams(**settings), history)


def _cut(stage: str, row: Tensor, settings: Settings, _: History) -> Tensor:
    cut: Callable[[Tensor, Any], Tensor] = getattr(processors, stage)
    return cut(row.double(), settings[stage])


def _processed(row: Tensor, settings: Settings, history: History) -> Tensor:
    params = SamplingParams(**{"temperature": 1.0, **settings})
    return processors.processed(row, params, history)


def _agree(row: Tensor, truth: Tensor, allowed: float, ask: Callable[[], Tensor]) -> str:
    """AGREES, or how the answer [V] differs from the truth [V] of a row [V]."""
    got = ask().double()
    if got.shape != truth.shape:
        return f"the shape {list(got.shape)}, not {list(truth.shape)}"
    value, truth = settled(row, got.log_softmax(-1)), settled(row, truth)
    kept = truth.isfinite()
    if not torch.equal(value > -torch.inf, kept):
        return f"{int((value > -torch.inf).sum())} tokens are left, not {int(kept.sum())}"
    return within(value[kept], truth[kept], float(truth[kept].abs().max()), allowed)


def about_choices(golden: Any, tensors: Mapping[str, Tensor]) -> Iterator[Question]:
    """The most likely token of each row, and draws from some."""
    for name, token in golden["greedy"].items():
        ask = partial(_chosen, tensors[name], SamplingParams(), NO_HISTORY, 3)
        yield Question("sampling.greedy", f"the row {name}", [token] * 3, ask)
    for n, draws in enumerate(golden["draws"]):
        logits = torch.tensor([-torch.inf if x is None else x for x in draws["logits"]])
        settings, history = from_json(draws["settings"]), _history(draws["past"])
        needs = _named((*PENALTIES, "temperature", *CUTS, "order", "together"))
        for expected, ask_draws in (
            (_FAIR, partial(_drawn, draws, logits, tensors[f"draw/{n}"], golden["false_alarm"])),
            (_SEEDED, partial(_repeats, logits, settings, history)),
        ):
            shown = f"draws with {spelled(settings)}"
            yield Question("sampling.draw", shown, expected, ask_draws, needs)


_FAIR = "shares that chance explains"
_SEEDED = "the same again with the same seed, another with another"


def _chosen(logits: Tensor, params: SamplingParams, history: History, n: int) -> list[int]:
    sampler = Sampler(params)
    return [sampler(logits, history) for _ in range(n)]


def _drawn(draws: Any, logits: Tensor, shares: Tensor, false_alarm: float) -> str:
    """_FAIR, or how unlikely the draws are if their shares were the exact ones [V]."""
    settings, history = from_json(draws["settings"]), _history(draws["past"])
    tokens: list[int] = []
    for seed in range(draws["seeds"]):
        params = SamplingParams(seed=seed, **settings)
        tokens += _chosen(logits, params, history, draws["draws"] // draws["seeds"])
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


def _repeats(logits: Tensor, settings: Settings, history: History) -> str:
    """Whether seeds, and nothing else, decide what is drawn."""
    runs: list[list[int]] = []
    with torch.random.fork_rng(devices=[]):
        for seed in (*_SEEDS, *_SEEDS):
            torch.manual_seed(len(runs))
            runs.append(_chosen(logits, SamplingParams(seed=seed, **settings), history, _FEW))
    first, again = runs[: len(_SEEDS)], runs[len(_SEEDS) :]
    if first != again:
        return "something else with the same seed"
    if len({tuple(run) for run in first}) < len(_SEEDS):
        return "the same with another seed"
    return _SEEDED
