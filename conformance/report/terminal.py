"""A report on a terminal, 80 columns wide: the first culprit, a compact table, what else there is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.report.report import Report, TextTrial
from conformance.report.words import choice, elsewhere, fed, following, runs, share
from conformance.text import TextFinding
from conformance.verdict import Culprit, Trial

# The JSON report has all of them.
SHOWN = 12  # culprits
SHOWN_CHOICES = 3  # differing choices of a run
SHOWN_CHARACTERS = 200  # of a text or a list of ids

_INDENT = " " * 9  # below the text that follows "culprit  "


def print_report(report: Report, console: Console) -> None:
    """The first culprit, a line per run, the other culprits, what was skipped, and the verdict."""
    _print_first(report, console)
    if report.trials or report.texts:
        console.print(_table(report))
    if any(t.worst for t in report.trials):
        dtypes = ", ".join(dict.fromkeys(t.dtype for t in report.trials))
        said = f"lockstep, free: the worst share of an allowance in {dtypes}, where 1 is the limit"
        console.print(said, style="dim", highlight=False)
    _print_others(report, console)
    for t in report.trials:
        name = f"{t.case}, {fed(t, report.trials)}"
        _print_unexplained(t, name, console)
        _print_choices(t, name, console)
    for note in report.unjudged:
        console.print(f"not judged  {note}", style="bold red", markup=False, highlight=False)
    for note in report.notes:
        console.print(f"skipped  {note}", style="yellow", markup=False, highlight=False)
    for text in report.texts:
        if text.answer is not None:
            console.print(Text(f"{text.case} answers: {text.answer!r}"))
    if report.exit_status == 2:
        console.print("conforms as far as it was judged", style="bold red")
    elif report.conforms:
        console.print(f"conforms: {report.summary}", style="bold green", highlight=False)
    else:
        console.print("diverges", style="bold red")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    dtypes = {t.dtype for t in report.trials}
    table.add_column("case", overflow="fold")
    table.add_column("candidate", overflow="fold")
    table.add_column("lockstep" if any(t.own for t in report.trials) else "", overflow="fold")
    table.add_column("free" if any(t.whole for t in report.trials) else "", justify="right")
    table.add_column("")
    for t in report.trials:
        own, whole = t.worst.get("lockstep"), t.worst.get("free")
        table.add_row(
            t.case,
            fed(t, report.trials) if len(dtypes) == 1 else f"{t.candidate} {t.dtype}",
            f"{share(own[1])}  {own[0]}" if own else "",
            share(whole[1]) if whole else "",
            _mark(t.conforms),
        )
    for text in report.texts:
        mark = _mark(text.conforms, "FAIL" if text.findings else "follows")
        table.add_row(text.case, text.what, "", "", mark)
    return table


def clip(value: object) -> str:
    """A text or a list of ids as Python writes it, not longer than a few lines."""
    shown = repr(value)
    return (
        shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}... (see --json)"
    )


def _mark(good: bool, otherwise: str = "FAIL") -> Text:
    return Text("ok", style="green") if good else Text(otherwise, style="bold red")


def _print_first(report: Report, console: Console) -> None:
    if report.guilty:
        trial, culprit = report.guilty[0][0]
        _print_operation(report.guilty[0], console)
        if said := following(trial, culprit):
            console.print(f"{_INDENT}{said}", highlight=False)
    for text, finding in _text_findings(report)[: 0 if report.guilty else 1]:
        _print_text(text, finding, console)


def _print_others(report: Report, console: Console) -> None:
    for sightings in report.guilty[1:SHOWN]:
        _print_operation(sightings, console)
    if len(report.guilty) > SHOWN:
        console.print(f"... and {len(report.guilty) - SHOWN} more culprits; --json has them all")
    for text, finding in _text_findings(report)[0 if report.guilty else 1 :]:
        _print_text(text, finding, console)


def _text_findings(report: Report) -> list[tuple[TextTrial, TextFinding]]:
    return [(t, f) for t in report.texts for f in t.findings]


def _print_operation(sightings: Sequence[tuple[Trial, Culprit]], console: Console) -> None:
    """Where an operation was first seen to be wrong, and where else."""
    culprit = sightings[0][1]
    finding = culprit.finding
    named = _broken([finding.probe, *filter(None, [culprit.place]), culprit.proof], console.width)
    console.print(Text.assemble(("culprit  ", "bold red"), named), soft_wrap=True)
    figures = str(finding).removeprefix(finding.probe).strip().split("  ")
    shown = _broken(figures, console.width)
    console.print(_INDENT + shown, soft_wrap=True, markup=False, highlight=False)
    also = filter(None, [elsewhere(sightings)])
    where = _broken([runs(sightings), *also], console.width)
    console.print(Text(_INDENT + where, style="dim"), soft_wrap=True)


def _broken(parts: Sequence[str], width: int) -> str:
    """The parts two spaces apart, on a new line where they would not fit; none is cut."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines[-1] else part
        if lines[-1] and len(_INDENT) + len(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return f"\n{_INDENT}".join(lines)


def _print_text(trial: TextTrial, finding: TextFinding, console: Console) -> None:
    said = f"{finding.stage} of {clip(finding.text)}: {clip(finding.got)}, expected "
    line = f"{said}{clip(finding.expected)}  {trial.case}"
    console.print(Text.assemble(("culprit  ", "bold red"), line))


def _print_unexplained(trial: Trial, name: str, console: Console) -> None:
    """What is outside in the free run where no operation is blamed: below L4, or between two."""
    if trial.culprits:
        return
    for finding in trial.propagated[:SHOWN]:
        shown = _broken(str(finding).split("  "), console.width)
        console.print(Text.assemble(("outside  ", "bold red"), shown), soft_wrap=True)
        console.print(Text(f"{_INDENT}{name}", style="dim"), soft_wrap=True)
    if len(trial.propagated) > SHOWN:
        console.print(f"... and {len(trial.propagated) - SHOWN} more; --json has them all")


def _print_choices(trial: Trial, name: str, console: Console) -> None:
    if trial.culprits:  # with operations at fault, other tokens are no news
        if trial.disagreements:
            count = len(trial.disagreements)
            line = f"{name}: {count} choice{' differs' if count == 1 else 's differ'}"
            console.print(line, style="dim", markup=False, highlight=False)
        return
    for kind, style, found in (
        ("BUG", "bold red", [d for d in trial.disagreements if not d.is_tie]),
        ("tie", "yellow", [d for d in trial.disagreements if d.is_tie]),
    ):
        for d in found[:SHOWN_CHOICES]:
            console.print(f"{kind}  {name}: {choice(d)}", style=style, markup=False)
        if len(found) > SHOWN_CHOICES:
            console.print(
                f"{kind}  and at {len(found) - SHOWN_CHOICES} more positions", style=style
            )
