"""A check's outcome as an object and as JSON; docs/report.md says what each field means.

`schema.json` beside this file describes the document. Fields may be added to it; a field that changes
its meaning or goes away takes a new `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from conformance.candidate import layer_of, operation
from conformance.judgement import Standing
from conformance.text import TextFinding
from conformance.verdict import Culprit, Trial, shorten

SCHEMA = 1  # version of the JSON document


@dataclass(frozen=True)
class TextTrial:
    """What answers were judged, and which of them differ; `what` gave them.

    `what` is "tokenizer", "decisions", "beams", "answers" to long prompts, or "generation", a
    candidate's own loop, whose `answer` is its text.
    """

    case: str
    what: str
    findings: tuple[TextFinding, ...]
    answer: str | None = None
    follows: bool = False  # it differs, as it must once the trials' culprits are at work

    @property
    def conforms(self) -> bool:
        return not (self.findings or self.follows)


@dataclass
class Report:
    """What was judged, in the order in which it was; `skipped` says what could not be, and why."""

    environment: dict[str, str]
    trials: list[Trial] = field(default_factory=list)
    texts: list[TextTrial] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)  # what an error kept from being judged

    @property
    def conforms(self) -> bool:
        return all(t.conforms for t in self.trials) and all(t.conforms for t in self.texts)

    @property
    def exit_status(self) -> int:
        """0 conforms, 1 diverges, 2 conforms as far as it could be judged."""
        return 1 if not self.conforms else 2 if self.unjudged else 0

    @property
    def notes(self) -> list[str]:
        """What was skipped: goldens and words, the probes that a candidate cannot offer, and tokens."""
        lacking = {
            f"{t.candidate} has no {', '.join(sorted({p.split('.', 2)[-1] for p in t.skipped}))}"
            for t in self.trials
            if t.skipped
        }
        tied = [
            f"{t.case} {t.dtype} {t.candidate}: {len(t.unjudged)} tokens are not judged, whose experts "
            "are a tie and are not shown"
            for t in self.trials
            if t.unjudged
        ]
        return [*self.skipped, *sorted(lacking), *tied]

    @property
    def summary(self) -> str:
        """What it means that all conforms: how much was compared."""
        probes, rows = sum(t.probes for t in self.trials), sum(t.rows for t in self.trials)
        if not rows:
            return "every answer is the reference's"
        return f"{probes:,} probes, {rows:,} rows, every one inside its envelope"

    @property
    def guilty(self) -> list[list[tuple[Trial, Culprit]]]:
        """The culprits by operation: mostly one is guilty in several layers, runs and cases."""
        operations: dict[tuple[str, str | None, bool | None], list[tuple[Trial, Culprit]]] = {}
        for t in self.trials:
            for c in t.culprits:
                key = (operation(c.finding.probe), c.file, c.graft_confirms)
                operations.setdefault(key, []).append((t, c))
        return list(operations.values())

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep check --json`."""
        return {
            "schema": SCHEMA,
            "verdict": "conforms" if self.conforms else "diverges",
            "cases": [_trial_json(t) for t in self.trials] + [_text_json(t) for t in self.texts],
            "culprits": [_culprit_json(t, c) for t in self.trials for c in t.culprits]
            + [_finding_json(t, f) for t in self.texts for f in t.findings],
            "ties": [
                {"case": t.case, "candidate": t.candidate, **asdict(d)}
                for t in self.trials
                for d in t.disagreements
                if d.is_tie
            ],
            "skipped": self.notes,
            "unjudged": self.unjudged,
            "environment": self.environment,
        }


def followers(trial: Trial, probe: str) -> int:
    """How many probes are outside in the free run with the culprit `probe` upstream of them."""
    return sum(probe in f.propagated_from for f in trial.propagated)


def paired(trial: Trial) -> Iterator[tuple[str, Standing | None, Standing | None]]:
    """Each probe of a trial with its standing in the lockstep run and in the free run."""
    own, whole = ({s.probe: s for s in run} for run in (trial.own, trial.whole))
    for probe in dict.fromkeys([*own, *whole]):
        yield probe, own.get(probe), whole.get(probe)


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "case": trial.case,
        "candidate": trial.candidate,
        "dtype": trial.dtype,
        "schedule": list(trial.schedule),
        "conforms": trial.conforms,
        "probes": trial.probes,
        "rows": trial.rows,
        "worst": {
            run: {"probe": probe, "share": share} for run, (probe, share) in trial.worst.items()
        },
        "standings": [
            {"probe": probe, "lockstep": own and own.worst, "free": whole and whole.worst}
            for probe, own, whole in paired(trial)
        ],
        "propagated": [asdict(f) for f in trial.propagated],
        "bugs": [asdict(d) for d in trial.disagreements if not d.is_tie],
    }


def _text_json(trial: TextTrial) -> dict[str, Any]:
    return {
        "case": trial.case,
        "candidate": trial.what,
        "conforms": trial.conforms,
        "answer": trial.answer,
        "follows": trial.follows,
    }


def _culprit_json(trial: Trial, culprit: Culprit) -> dict[str, Any]:
    found = asdict(culprit.finding)
    found.pop("propagated_from")  # a culprit's own error follows from nothing
    return {
        "case": trial.case,
        "candidate": trial.candidate,
        "layer": layer_of(culprit.finding.probe),
        **found,
        "file": culprit.file and shorten(culprit.file),
        "line": culprit.line,
        "graft_confirms": culprit.graft_confirms,
        "followers": followers(trial, culprit.finding.probe),
    }


def _finding_json(trial: TextTrial, found: TextFinding) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(
        ("layer", "position", "head", "error", "allowance", "kind", "file", "line")
    )
    return {
        "case": trial.case,
        "candidate": trial.what,
        "step": 0,
        "probe": found.stage,
        **nothing,
        "since": None,
        "graft_confirms": None,
        "worst": [],
        "followers": 0,
        "problem": f"{found.text!r}: expected {found.expected!r}, got {found.got!r}",
    }
