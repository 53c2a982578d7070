"""A check's outcome as an object, as JSON, as a table in the terminal and as a page."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.text import TextFinding
from conformance.verdict import Culprit, Trial, shorten

# In the terminal; the JSON report has all.
SHOWN = 12  # culprits
SHOWN_CHOICES = 3  # differing choices of a run


@dataclass(frozen=True)
class TextTrial:
    """What was wrong with a tokenizer, a generation or the words of a real model, and where."""

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

    @property
    def conforms(self) -> bool:
        return all(t.conforms for t in self.trials) and all(t.conforms for t in self.texts)

    @property
    def exit_status(self) -> int:
        """0 conforms, 1 diverges."""
        return 0 if self.conforms else 1

    @property
    def notes(self) -> list[str]:
        """What was skipped: goldens and words, then the probes that a candidate cannot offer."""
        lacking = {
            f"{t.candidate} has no {', '.join(sorted({p.split('.', 2)[-1] for p in t.skipped}))}"
            for t in self.trials
            if t.skipped
        }
        return [*self.skipped, *sorted(lacking)]

    def to_json(self) -> dict[str, Any]:
        """The document of `lockstep check --json`."""
        return {
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
            "environment": self.environment,
        }


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
        "propagated": [asdict(f) for f in trial.propagated],
        "bugs": [asdict(d) for d in trial.disagreements if not d.is_tie],
    }


def _text_json(trial: TextTrial) -> dict[str, Any]:
    return {
        "case": trial.case,
        "candidate": trial.what,
        "conforms": trial.conforms,
        "answer": trial.answer,
    }


def _culprit_json(trial: Trial, culprit: Culprit) -> dict[str, Any]:
    found = culprit.finding
    layer = found.probe.removeprefix("cache.").split(".")
    return {
        "case": trial.case,
        "candidate": trial.candidate,
        "step": found.step,
        "probe": found.probe,
        "layer": int(layer[1]) if layer[0] == "layers" else None,
        "position": found.position,
        "head": found.head,
        "error": found.error,
        "allowance": found.allowance,
        "problem": found.problem,
        "file": culprit.file and shorten(culprit.file),
        "line": culprit.line,
        "graft_confirms": culprit.graft_confirms,
    }


def _finding_json(trial: TextTrial, found: TextFinding) -> dict[str, Any]:
    nothing: dict[str, Any] = dict.fromkeys(
        ("layer", "position", "head", "error", "allowance", "file", "line", "graft_confirms")
    )
    return {
        "case": trial.case,
        "candidate": trial.what,
        "step": 0,
        "probe": found.stage,
        **nothing,
        "problem": f"{found.text!r}: expected {found.expected!r}, got {found.got!r}",
    }


def print_report(report: Report, console: Console) -> None:
    """What happened in one screen: a line per run, then the culprits, then the verdict."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("case", "left"),
        ("candidate", "left"),
        ("probes", "right"),
        ("rows", "right"),
        ("worst in lockstep", "left"),
        ("free", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for t in report.trials:
        own, whole = t.worst.get("lockstep"), t.worst.get("free")
        table.add_row(
            t.case,
            f"{t.candidate} {t.dtype}",
            str(t.probes),
            f"{t.rows:,}",
            f"{_share(own[1]):>6}  {own[0]}" if own else "",
            _share(whole[1]) if whole else "",
            _mark(t.conforms),
        )
    for text in report.texts:
        table.add_row(
            text.case,
            text.what,
            "",
            "",
            "",
            "",
            _mark(text.conforms, "FAIL" if text.findings else "follows"),
        )
    console.print(table)
    console.print(
        "worst: share of its allowance that the probe nearest to it used; above 1 is outside",
        style="dim",
    )
    _print_culprits(report, console)
    for note in report.notes:
        console.print(f"skipped  {note}", style="yellow", markup=False)
    for t in report.trials:
        _print_choices(t, console)
    for text in report.texts:
        if text.answer is not None:
            console.print(Text(f"{text.case} answers: {text.answer!r}"))
    rows = sum(t.rows for t in report.trials)
    probes = sum(t.probes for t in report.trials)
    if report.conforms:
        compared = f"{probes:,} probes, {rows:,} rows, every one inside its envelope"
        said = compared if rows else "every answer is the reference's"
        console.print(f"conforms: {said}", style="bold green")
    else:
        console.print("diverges", style="bold red")


def _share(share: float) -> str:
    return f"{share:.2f}" if share < 1000 else f"{share:.0e}"


def _mark(good: bool, otherwise: str = "FAIL") -> Text:
    return Text("ok", style="green") if good else Text(otherwise, style="bold red")


def _print_culprits(report: Report, console: Console) -> None:
    # The same operation is often guilty in several runs of a case: one entry, the first run's figures.
    seen: dict[tuple[str, str], list[tuple[Culprit, str]]] = {}
    for t in report.trials:
        for culprit in t.culprits:
            runs = seen.setdefault((t.case, culprit.finding.probe), [])
            runs.append((culprit, t.candidate))
    for (case, probe), runs in list(seen.items())[:SHOWN]:
        culprit = runs[0][0]
        place = f"  {shorten(culprit.file)}:{culprit.line}" if culprit.file else ""
        proof = "confirmed by graft" if culprit.graft_confirms else "not confirmed by graft"
        line = f"{probe}{place}  {proof}"
        console.print(Text.assemble(("culprit  ", "bold red"), line), soft_wrap=True)
        figures = str(culprit.finding).removeprefix(probe).strip()
        console.print(f"         {figures}", soft_wrap=True, markup=False, highlight=False)
        console.print(f"         {case}: {', '.join(name for _, name in runs)}", style="dim")
    if len(seen) > SHOWN:
        console.print(f"... and {len(seen) - SHOWN} more culprits; --json has them all")
    for text in report.texts:
        for f in text.findings:
            line = f"{f.stage} of {f.text!r}: {f.got!r}, expected {f.expected!r}  {text.case}"
            console.print(Text.assemble(("culprit  ", "bold red"), line), soft_wrap=True)
    for t in report.trials:
        if t.propagated and not t.culprits:  # below L4, or what no single operation explains
            for finding in t.propagated[:SHOWN]:
                outside = Text.assemble(
                    ("outside  ", "bold red"), f"{finding}  {t.case}, {t.candidate}"
                )
                console.print(outside, soft_wrap=True)
        elif t.propagated:
            first = ", ".join(f.probe for f in t.propagated[:3])
            line = (
                f"{t.case}, {t.candidate}: propagated to {len(t.propagated)} more probes: {first}"
            )
            console.print(line, style="dim", markup=False)


def _print_choices(trial: Trial, console: Console) -> None:
    if trial.culprits:  # with operations at fault, other tokens are no news
        if trial.disagreements:
            console.print(
                f"{trial.case}, {trial.candidate}: {len(trial.disagreements)} greedy choices differ",
                style="dim",
            )
        return
    for kind, style, found in (
        ("BUG", "bold red", [d for d in trial.disagreements if not d.is_tie]),
        ("tie", "yellow", [d for d in trial.disagreements if d.is_tie]),
    ):
        for d in found[:SHOWN_CHOICES]:
            console.print(
                f"{kind}  {trial.case}, {trial.candidate}: after position {d.position} it prefers "
                f"{d.chosen}, the reference {d.expected}, by a margin of {d.margin:.1e} "
                f"where {d.allowance:.1e} is allowed",
                style=style,
                markup=False,
            )
        if len(found) > SHOWN_CHOICES:
            console.print(
                f"{kind}  and at {len(found) - SHOWN_CHOICES} more positions", style=style
            )


def write_html(report: Report, path: Path) -> None:
    """The same as one self-contained page."""
    document = report.to_json()
    culprits = _html_table(
        document["culprits"],
        ("case", "probe", "position", "head", "error", "allowance", "problem", "file", "line"),
    )
    cases = _html_table(
        document["cases"], ("case", "candidate", "dtype", "probes", "rows", "conforms")
    )
    about = _html_table([document["environment"]], tuple(document["environment"]))
    skipped = "".join(f"<li>{html.escape(note)}</li>" for note in document["skipped"])
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>lockstep: {document['verdict']}</title><style>{_STYLE}</style>"
        f"<h1 class={document['verdict']}>{document['verdict']}</h1>"
        f"<h2>Culprits</h2>{culprits}<h2>Cases</h2>{cases}"
        f"<h2>Skipped</h2><ul>{skipped}</ul><h2>Environment</h2>{about}</html>\n",
        encoding="utf-8",
    )


_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:72rem;margin:2rem auto;"
    "padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.25rem .75rem;text-align:left;border-bottom:1px solid #8884}"
    ".conforms{color:#2a7d2a}.diverges{color:#c22}"
)


def _html_table(rows: Iterable[dict[str, Any]], columns: tuple[str, ...]) -> str:
    def cell(value: Any) -> str:
        if value is None:
            return ""
        return html.escape(f"{value:.2e}" if isinstance(value, float) else str(value))

    head = "".join(f"<th scope=col>{html.escape(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(row.get(c))}</td>" for c in columns) + "</tr>" for row in rows
    )
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else "<p>none"
    )
