"""Runs a candidate beside a golden: freely, re-synchronised at every probe, or grafted at some.

There is one walk. Which probes hand the golden's value on makes the run:
    free run        none: errors accumulate, as they do in production
    lockstep run    all: each operation starts from the reference's inputs and shows its own error
    graft           the suspected ones: if they alone were at fault, all that follows comes right

The choice of experts is handed on in every run: what follows another one can be compared with nothing.
So is a cache that rounds, for the same reason.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conformance.candidate import Candidate, Level, UnavailableError, over_keys, said
from conformance.envelope import RowErrors, largest_at, row_errors
from conformance.experts import choice_errors, is_expert_choice, router_of
from conformance.golden import Golden
from engine.errors import LockstepError

HandOn = Callable[[str], bool]
_MAY_BE_WIDE = ("logits", "logprobs", ".scores", ".weights", ".expert_weights")
_GONE = 110.0  # so far below a row's best score nothing is left of it: exp(-104) is 0 in float32


def everywhere(probe: str) -> bool:
    return True


def nowhere(probe: str) -> bool:
    return False


@dataclass(frozen=True)
class Element:
    """One number of a row: what the candidate has there, and the truth."""

    index: int
    got: float
    expected: float


@dataclass(frozen=True)
class Measurement:
    """One probe in one step: row errors [B, heads..., T], or the reason why there are none."""

    probe: str
    step: int
    start: int  # position of the first token that is shown
    errors: RowErrors | None = None
    problem: str | None = None
    row: tuple[Tensor, Tensor] | None = None  # the row furthest off: got, expected
    since: str | None = None  # the last probe before others that the golden does not hold

    def elements(self, count: int = 3) -> tuple[Element, ...]:
        """The elements furthest off in the row furthest off: where two tensors differ, to be looked at."""
        if self.row is None:
            return ()
        got, expected = (numbers.double().cpu() for numbers in self.row)
        off = (got - expected).abs().masked_fill(expected == -torch.inf, -1.0)
        return tuple(
            Element(int(i), float(got[i]), float(expected[i]))
            for i in off.topk(min(count, len(off))).indices
            if off[i] > 0
        )


@dataclass(frozen=True)
class Choice:
    """The candidate's most likely next token at a position, where the golden's is another."""

    position: int
    chosen: int
    expected: int


@dataclass(frozen=True)
class ExpertChoice:
    """The experts that the candidate chose at a position, where the golden has others at that probe."""

    probe: str
    position: int
    chosen: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass
class Walk:
    """All that one run showed, in order."""

    measurements: list[Measurement] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    expert_choices: list[ExpertChoice] = field(default_factory=list)


def walk(
    candidate: Candidate,
    golden: Golden,
    dtype: torch.dtype,
    hand_on: HandOn,
    schedule: Sequence[int] | None = None,
    level: Level = Level.L5,
) -> Walk:
    """Feeds the golden's ids in steps of `schedule` tokens (the golden's own by default).

    Every probe that candidate, golden and `level` have in common is measured against the truth.
    """
    level = min(level, candidate.level)
    result = Walk()
    golden.load()
    try:
        candidate.begin(len(golden.ids))
    except LockstepError:
        raise
    except Exception as error:
        raise LockstepError(f"{candidate.name} cannot begin: {said(error)}") from error
    start = 0
    for step, size in enumerate(schedule or golden.schedule):
        stop = start + size
        watch = _Watch(candidate, golden, dtype, hand_on, step, start, stop, level, result)
        expected = {p for p in golden.probes(level) if candidate.offers(p)}
        raised = None
        try:
            candidate.step(golden.ids[start:stop], watch)
        except UnavailableError:
            raise
        except Exception as error:  # whatever a foreign engine raises is its fault, not the suite's
            where = traceback.extract_tb(error.__traceback__)[-1]
            raised = f"{said(error)} ({where.filename}:{where.lineno})"
        missing = sorted(expected - watch.seen, key=golden.order)
        if raised is not None:  # the first operation that is missing is the one that failed
            last = max(expected, key=golden.order)
            probe, how = (missing[0], "was not reached") if missing else (last, "was followed by")
            problem = f"{how}: {raised}"
            result.measurements.append(Measurement(probe, step, start, problem=problem))
            return result
        for probe in missing:
            problem = "was never shown"
            result.measurements.append(Measurement(probe, step, start, problem=problem))
        start = stop
    return result


class _Watch:
    """The tap of one step."""

    def __init__(
        self,
        candidate: Candidate,
        golden: Golden,
        dtype: torch.dtype,
        hand_on: HandOn,
        step: int,
        start: int,
        stop: int,
        level: Level,
        result: Walk,
    ) -> None:
        self.partial, self.cache_rounds = candidate.partial, candidate.cache_rounding > 0
        self.golden, self.dtype, self.hand_on, self.level = golden, dtype, hand_on, level
        self.step, self.start, self.stop = step, start, stop
        self.result = result
        self.seen: set[str] = set()
        self.latest: str | None = None
        self.since: str | None = None

    def __call__(self, probe: str, value: Tensor) -> Tensor:
        if probe == "logits" and self.level.stands_for_all:
            self._from_logits(value)
        if not self.level.offers(probe):
            return value
        if not self.golden.watches(probe):
            self.since = self.since or self.latest
            return value
        since, self.since, self.latest = self.since, None, probe
        if probe in self.seen:
            self._report(probe, problem="was shown twice in one step")
            return value
        self.seen.add(probe)
        if probe not in self.golden:
            self._report(probe, problem="is not in the reference: the candidate has one too many")
            return value
        truth = self.golden.truth(probe, self.start, self.stop)
        rounded = truth.to(self.dtype) if truth.is_floating_point() else truth
        rounds = self.cache_rounds and probe.startswith("cache.")
        hand_on = self.hand_on(probe) or is_expert_choice(probe) or rounds
        if problem := _no_numbers(probe, value):
            self._report(probe, problem=problem)
            return rounded[None] if hand_on else value
        truth = truth.to(value.device)
        batch = value.shape[0] or 1 if value.ndim == truth.ndim + 1 else 1
        expected = (batch, *truth.shape)
        kept = self.golden.kept(probe, value)
        if tuple(kept.shape) != expected:
            problem = f"has the shape {tuple(kept.shape)}, the reference {expected}"
            self._report(probe, problem=problem)
            return rounded.to(value.device).expand(expected).clone() if hand_on else value
        self._measure(probe, value, truth, since)
        if hand_on and kept is value:  # nothing follows a part of the logits
            return truth.to(value.dtype).expand(expected).clone()
        return value

    def _from_logits(self, logits: Tensor) -> None:
        """A deeper candidate judged at a shallow level shows less than it could."""
        if self.level == Level.L2:
            self("logprobs", logits.float().log_softmax(-1).to(logits.dtype))
        else:
            self("next_id", logits[:, -1].argmax(-1, keepdim=True))

    def _measure(self, probe: str, value: Tensor, truth: Tensor, since: str | None = None) -> None:
        if probe == "next_id":
            self._compare_choices([self.stop - 1], value[0].tolist(), truth.tolist())
            return
        if is_expert_choice(probe):
            self._compare_experts(probe, value, truth, since)
            return
        whole, value = value, self.golden.kept(probe, value)
        known = truth
        if self.partial:  # what the candidate did not say counts no more than a masked place
            known = truth.masked_fill(value.isnan(), -torch.inf)
            whole, value = (x.nan_to_num(nan=-torch.inf) for x in (whole, value))
        scale = self.golden.scale(probe, self.start, self.stop)
        errors = row_errors(value, known, None if scale is None else scale.to(value.device))
        start = 0 if over_keys(probe) else self.start
        # Kernels keep scores, samplers logits and routers all they have in float32: the same numbers.
        widened = probe.endswith(_MAY_BE_WIDE) and value.dtype == torch.float32
        if self.partial and not (known > -torch.inf).any():
            self._report(probe, problem="is unknown throughout")
        elif value.dtype != self.dtype and not widened:
            self._report(probe, problem=f"is {value.dtype}, the run is {self.dtype}")
        elif not torch.isfinite(errors.largest).all():
            position = start + int((~torch.isfinite(errors.largest)).nonzero()[0][-1])
            self._report(probe, problem=f"is not finite, first at position {position}")
        elif probe.endswith(".scores") and _lets_through(value, truth):
            self._report(probe, problem="lets a masked place into the softmax")
        else:
            row = largest_at(errors.largest)
            pair = value[row].clone(), known.expand_as(value)[row].clone()
            self.result.measurements.append(
                Measurement(probe, self.step, start, errors, row=pair, since=since)
            )
        if probe in ("logits", "logprobs"):
            said = (known > -torch.inf).expand_as(value).any(-1)[0]
            self._compare_choices(
                (self.start + said.nonzero()[:, 0]).tolist(),
                whole[0].argmax(-1)[said].tolist(),
                self.golden.tokens(truth.argmax(-1).cpu())[said.cpu()].tolist(),
            )
        if probe == "logits" and not self.hand_on(probe):
            logprobs = whole.float().log_softmax(-1).to(whole.dtype)
            truth = self.golden.truth("logprobs", self.start, self.stop).to(whole.device)
            self._measure("logprobs", logprobs, truth)

    def _compare_choices(
        self, positions: list[int], chosen: list[int], expected: list[int]
    ) -> None:
        found = [
            Choice(position, ours, theirs)
            for position, ours, theirs in zip(positions, chosen, expected, strict=True)
            if ours != theirs
        ]
        self.result.choices += [c for c in found if c not in self.result.choices]

    def _compare_experts(self, probe: str, value: Tensor, truth: Tensor, since: str | None) -> None:
        chosen, expected = value.long().sort(-1).values, truth.sort(-1).values
        margins = self.golden.expert_margins(probe, self.start, self.stop).to(value.device)
        n_experts = self.golden.trace[router_of(probe)].shape[-1]
        errors = choice_errors(chosen, expected, margins, n_experts)
        row = largest_at(errors.largest)
        pair = chosen[row].clone(), expected[row[1:]].clone()
        self.result.measurements.append(
            Measurement(probe, self.step, self.start, errors, row=pair, since=since)
        )
        self.result.expert_choices += [
            ExpertChoice(probe, self.start + n, tuple(ours), tuple(theirs))
            for n, (ours, theirs) in enumerate(
                zip(chosen[0].tolist(), expected.tolist(), strict=True)
            )
            if ours != theirs
        ]

    def _report(self, probe: str, problem: str) -> None:
        self.result.measurements.append(Measurement(probe, self.step, self.start, problem=problem))


def _no_numbers(probe: str, value: Any) -> str | None:
    """What keeps a value from being compared at all: an engine may show a tap anything."""
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a torch.Tensor"
    if value.layout != torch.strided or value.is_meta:
        return "is a tensor without numbers in rows"
    ids = probe == "next_id" or is_expert_choice(probe)
    if ids and (value.is_floating_point() or value.is_complex()):
        return f"is {value.dtype}, ids are whole numbers"
    return None


def _lets_through(scores: Tensor, truth: Tensor) -> bool:
    """Whether a place that the truth masks could still weigh something."""
    weighs = ~(scores <= truth.amax(-1, keepdim=True) - _GONE)
    return bool((weighs & (truth == -torch.inf)).any())


def graft_at(probes: Iterable[str]) -> HandOn:
    chosen = frozenset(probes)
    return chosen.__contains__
