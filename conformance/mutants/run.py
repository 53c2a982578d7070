"""Judges each mutant in a process of its own: was it caught, where does it show, who was blamed?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from conformance.candidate import operation
from conformance.mutants.activations import ACTIVATIONS
from conformance.mutants.attention import ATTENTION
from conformance.mutants.bans import BANS
from conformance.mutants.beams import BEAMS
from conformance.mutants.cache import CACHE
from conformance.mutants.chat import CHAT
from conformance.mutants.cuts import CUTS
from conformance.mutants.decoders import DECODERS
from conformance.mutants.experts import EXPERTS
from conformance.mutants.latent import LATENT
from conformance.mutants.layers import LAYERS
from conformance.mutants.loop import LOOP
from conformance.mutants.models import MODELS
from conformance.mutants.mutant import Mutant
from conformance.mutants.normalizers import NORMALIZERS
from conformance.mutants.norms import NORMS
from conformance.mutants.penalties import PENALTIES
from conformance.mutants.planting import plant, planted
from conformance.mutants.positions import POSITIONS
from conformance.mutants.real import REAL
from conformance.mutants.rope import ROPE
from conformance.mutants.sampling import SAMPLING
from conformance.mutants.scores import SCORES
from conformance.mutants.splitters import SPLITTERS
from conformance.mutants.stopping import STOPPING
from conformance.mutants.stream import STREAM
from conformance.mutants.tiled import TILED
from conformance.mutants.tokenizer import TOKENIZER
from conformance.mutants.weights import WEIGHTS
from conformance.mutants.windows import WINDOWS
from conformance.mutants.words import WORDS
from conformance.process import Say
from engine.errors import LockstepError, RequestError

if TYPE_CHECKING:  # a fault is planted before the engine is imported, so it is not imported here
    from conformance.report import Report

#: What the engine and the suite import of others: loaded once, in the server that all fork from.
_PRELOADED = ["torch", "sympy", "safetensors.torch", "regex", "numpy", "gguf", "platformdirs"]
_PRELOADED += ["filelock", "jinja2.sandbox", "jinja2.ext", "rich.table", "rich.progress"]

#: What the faults are about.
THEMES: Mapping[str, tuple[Mutant, ...]] = {
    "tokenizer": TOKENIZER,
    "normalizers": NORMALIZERS,
    "splitters": SPLITTERS,
    "words": WORDS,
    "models": MODELS,
    "decoders": DECODERS,
    "chat": CHAT,
    "stream": STREAM,
    "weights": WEIGHTS,
    "rope": ROPE,
    "attention": ATTENTION,
    "tiled": TILED,
    "layers": LAYERS,
    "windows": WINDOWS,
    "scores": SCORES,
    "positions": POSITIONS,
    "norms": NORMS,
    "activations": ACTIVATIONS,
    "experts": EXPERTS,
    "latent": LATENT,
    "cache": CACHE,
    "loop": LOOP,
    "sampling": SAMPLING,
    "penalties": PENALTIES,
    "bans": BANS,
    "cuts": CUTS,
    "stopping": STOPPING,
    "beams": BEAMS,
    "real": REAL,
}
CATALOGUE: tuple[Mutant, ...] = tuple(mutant for theme in THEMES.values() for mutant in theme)

#: The goldens that judge a family's faults, as a pattern of their names. Of the tiny models one has
#: nearly everything, biases and grouped heads; a fault that takes another one to be seen names it.
#: Of the tokenizers all but those of words, of which one takes a second to load.
CASES = {
    "llama": "llama-bias",
    "gpt2": "gpt2-inverse-layer",
    "mistral": "mistral-window",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma-mqa",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3-partial",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "granite": "granite",
    "mixtral": "mixtral",
    "qwen3_moe": "qwen3-moe",
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "deepseek-v3",
    "long": "long-*",
    "tokenizer": "text-[!w]*",
    "gguf": "smollm2-135m",
    "decisions": "decisions",
    "beams": "beams-llama",
    "gemma3-270m": "answers-gemma3-270m",
}
#: The weaker checks need a model, and a golden of its operations.
_MODELS = {**CASES, "decisions": "llama-bias", "beams": "llama-bias", "gemma3-270m": "gemma3-270m"}

#: Stages whose answer is text; those of the others is ids.
_TEXT_STAGES = {f"tokenizer.{stage}" for stage in ("decode", "stream", "stop", "chat")}
_TEXT_STAGES |= {"stopping.stop_text"}


@dataclass(frozen=True)
class Outcome:
    """What the check said of one mutant. `error` is set where it could not be judged."""

    mutant: Mutant
    killed: bool
    blamed: tuple[str, ...]
    level: str
    noticed_by: frozenset[str]  # weaker checks
    seconds: float
    error: str | None = None

    @property
    def blamed_right(self) -> bool:
        return self.killed and set(self.blamed) == set(self.mutant.expected.split())


@dataclass
class MutantReport:
    outcomes: list[Outcome] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 if every fault was caught and none imagined; 2 if one could not be judged."""
        if any(o.error for o in self.outcomes):
            return 2
        return 0 if all(o.killed for o in self.outcomes) and not self.false_alarms else 1

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep mutants --json`."""
        from conformance.mutants.weaker import WEAKER

        return {
            "mutants": [
                {
                    "id": o.mutant.id,
                    "family": o.mutant.family,
                    "theme": theme_of(o.mutant),
                    "fault": o.mutant.fault,
                    "source": o.mutant.source,
                    "expected": o.mutant.expected.split(),
                    "blamed": list(o.blamed),
                    "killed": o.killed,
                    "blamed_right": o.blamed_right,
                    "level": o.level,
                    "weaker_checks": sorted(o.noticed_by),
                    "seconds": round(o.seconds, 2),
                    "error": o.error,
                }
                for o in self.outcomes
            ],
            "survivors": [o.mutant.id for o in self.outcomes if not o.killed],
            "weaker_checks": {
                name: sum(name in o.noticed_by for o in self.outcomes) for name in WEAKER
            },
            "false_alarms": len(self.false_alarms),
        }


def theme_of(mutant: Mutant) -> str:
    return next(theme for theme, mutants in THEMES.items() if mutant in mutants)


def _of_family(family: str) -> list[Mutant]:
    return [mutant for mutant in CATALOGUE if mutant.family == family]


def run_mutants(family: str | None, say: Say, one_in: int = 1) -> MutantReport:
    """Judges the mutants of `family` (all, if None), and the unmutated engine beside them.

    Of every `one_in` of a family the first is judged, by default each of them.
    """
    families = [f for f in CASES if family in (None, f)]
    if not families:
        raise RequestError(f"no mutants of the family {family!r}; there are {', '.join(CASES)}")
    mutants = [m for f in families for m in _of_family(f)[::one_in]]
    for mutant in mutants:
        planted(mutant)  # a fault that no longer fits the code is an error before anything runs
    report = MutantReport()
    with processes() as pool:
        sound = {run: pool.submit(_judge, (), run) for run in sorted({_Run.of(m) for m in mutants})}
        running = {pool.submit(_judge, (mutant,), _Run.of(mutant)): mutant for mutant in mutants}
        for done, future in enumerate(as_completed(running), 1):
            say(f"mutants: {done} of {len(running)}, last {running[future].id}")
        for future, mutant in running.items():
            unmutated = sound[_Run.of(mutant)].result()
            report.outcomes.append(_outcome(mutant, future.result(), unmutated))
        for run, future in sound.items():
            verdict = future.result()
            alarms = list(verdict.blamed) or (["diverges"] if verdict.diverges else [])
            said = [verdict.error] if verdict.error else alarms
            report.false_alarms += [f"{run.cases} in {run.dtype}: {what}" for what in said]
    return report


def judge_together(mutants: Sequence[Mutant]) -> dict[str, Any]:
    """The check's JSON document with several faults of one family planted at once."""
    (run,) = {_Run.of(mutant) for mutant in mutants}
    with processes() as pool:
        document: dict[str, Any] = pool.submit(_document, tuple(mutants), run).result()
    return document


@dataclass(frozen=True, order=True)
class _Run:
    """What a fault is judged on: patterns of goldens for the suite and the weaker checks, a dtype."""

    cases: str
    models: str
    dtype: str

    @classmethod
    def of(cls, mutant: Mutant) -> _Run:
        cases = mutant.cases or CASES[mutant.family]
        return cls(cases, mutant.cases or _MODELS[mutant.family], mutant.dtype)


def processes() -> ProcessPoolExecutor:
    """A fresh process for each task: faults must be there when the engine is first imported.

    Two at a time, each on one thread.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1)


@dataclass(frozen=True)
class _Verdict:
    """What the suite and the weaker checks made of the engine that one process imported."""

    diverges: bool
    blamed: tuple[str, ...]
    level: str
    noticed: frozenset[tuple[str, str]]
    seconds: float
    error: str | None = None


def _judge(mutants: Sequence[Mutant], run: _Run) -> _Verdict:
    start = time.monotonic()
    plant(mutants)
    try:
        report = _check(run)
    except Exception as error:  # a fault that stops the check is neither caught nor missed
        reason = f"{type(error).__name__}: {error}"
        return _Verdict(False, (), "-", frozenset(), time.monotonic() - start, reason)
    from conformance.mutants.weaker import notices

    document = report.to_json()
    blamed = tuple(dict.fromkeys(operation(c["probe"]) for c in document["culprits"]))
    level = "-" if report.conforms else _level(report)
    seconds = time.monotonic() - start  # of the suite: what the weaker checks take is not its own
    noticed = frozenset(notices(run.models, run.dtype))
    return _Verdict(not report.conforms, blamed, level, noticed, seconds)


def _outcome(mutant: Mutant, verdict: _Verdict, unmutated: _Verdict) -> Outcome:
    """A weaker check that holds the same against the engine without the fault has not noticed it."""
    return Outcome(
        mutant,
        killed=verdict.diverges,
        blamed=verdict.blamed,
        level=verdict.level,
        noticed_by=frozenset(name for name, _ in verdict.noticed - unmutated.noticed),
        seconds=verdict.seconds,
        error=verdict.error,
    )


def _document(mutants: Sequence[Mutant], run: _Run) -> dict[str, Any]:
    plant(mutants)
    return _check(run).to_json()


def _check(run: _Run) -> Report:
    import torch

    from conformance.check import run_check

    torch.set_num_threads(1)
    report = run_check(dtype=run.dtype, cases=run.cases)
    if report.conforms and report.skipped:  # no fault survives because its golden was left out
        raise LockstepError(report.skipped[0])
    return report


def _level(report: Report) -> str:
    """The lowest level at which the fault shows: text, ids, and so on down to the cache."""
    from conformance.candidate import Level, level_of

    levels = {level_of(f.probe) for t in report.trials for f in t.propagated}
    levels |= {level_of(c.finding.probe) for t in report.trials for c in t.culprits}
    if any(t.logits_outside for t in report.trials):
        levels.add(Level.L3)
    if any(not d.is_tie for t in report.trials for d in t.disagreements):
        levels.add(Level.L1)
    for said in report.texts:
        stages = {found.stage for found in said.findings}
        if stages in ({"logprobs"}, {"logits"}):
            levels.add(Level.L2 if stages == {"logprobs"} else Level.L3)
        elif not said.conforms:
            in_words = bool(stages & _TEXT_STAGES) or said.answer is not None
            levels.add(Level.L0 if in_words else Level.L1)
    return min(levels).name


def print_mutants(report: MutantReport, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("mutant", "killed", "at", "blamed", "expected", "s"):
        table.add_column(column, overflow="fold", justify="right" if column == "s" else "left")
    for o in report.outcomes:
        killed = "[red]error[/]" if o.error else "yes" if o.killed else "[red]NO[/]"
        right = "" if o.blamed_right else f"[red]{o.mutant.expected}[/]"
        blamed = o.error or " ".join(o.blamed)
        table.add_row(o.mutant.id, killed, o.level, blamed, right, f"{o.seconds:.1f}")
    console.print(table)
    console.print(_strengths(report))
    n = len(report.outcomes)
    n_right = sum(o.blamed_right for o in report.outcomes)
    n_killed = sum(o.killed for o in report.outcomes)
    console.print(f"{n_killed} of {n} killed, {n_right} blamed on exactly the expected operations")
    for o in report.outcomes:
        if not o.killed:
            console.print(f"[red]survivor[/]  {o.mutant.id}: {o.mutant.fault}")
    console.print(f"the unmutated engine: {len(report.false_alarms)} operations blamed")
    for alarm in report.false_alarms:
        console.print(f"[red]false alarm[/]  {alarm}")


def _strengths(report: MutantReport) -> Table:
    """How many of each theme's faults this suite and the weaker checks noticed."""
    from conformance.mutants.weaker import WEAKER

    table = Table(box=None, pad_edge=False)
    for column in ("theme", "faults", "this suite", *WEAKER):
        table.add_column(column, justify="left" if column == "theme" else "right")
    for name, outcomes in _by_theme(report.outcomes):
        noticed = [sum(check in o.noticed_by for o in outcomes) for check in WEAKER]
        killed = sum(o.killed for o in outcomes)
        table.add_row(name, *map(str, (len(outcomes), killed, *noticed)))
    return table


def _by_theme(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Sequence[Outcome]]]:
    for theme in THEMES:
        if of_theme := [o for o in outcomes if theme_of(o.mutant) == theme]:
            yield theme, of_theme
    yield "all", outcomes
