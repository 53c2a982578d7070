"""What differs between two versions of the engine, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.since.compare import Change, Comparison, EngineDiff

SHOWN = 12  # changed operations, and answers; the JSON report has all


def print_diff(diff: EngineDiff, console: Console) -> None:
    """A line per run, then what changed, then the verdict."""
    table = Table(box=None, pad_edge=False)
    for name in ("case", "candidate", "prompt", "probes", "in lockstep", "free"):
        table.add_column(name, justify="right" if name == "probes" else "left", overflow="fold")
    for c in diff.comparisons:
        own, whole = _cell(c.changes), _cell(c.downstream)
        table.add_row(c.case, c.candidate, c.schedule, str(c.probes), own, whole)
    for a in diff.answers:
        if a.what != "tokenizer" and not a.changed:
            continue  # a candidate's own loop follows its probes; the last line counts it
        same = Text("the same", style="green")
        said = Text(f"{len(a.changed)} differ", style="bold red") if a.changed else same
        table.add_row(a.case, a.what, "", f"{a.count} answers", said)
    console.print(table)
    _print_changes(diff, console)
    for note in diff.skipped:
        console.print(f"skipped  {note}", style="yellow", markup=False)
    probes = sum(c.probes for c in diff.comparisons)
    answers = sum(a.count for a in diff.answers)
    style = "bold red" if diff.verdict == "differs" else "bold green"
    line = f"{diff.verdict}: {probes:,} probes and {answers:,} answers of {diff.before} and {diff.after}"
    console.print(line, style=style, markup=False, highlight=False)


def _cell(changes: Sequence[Change]) -> Text:
    if not changes:
        return Text("bit-identical", style="green")
    if any(c.problem for c in changes):
        return Text("differs", style="bold red")
    share = max(c.share for c in changes)
    operations = f"{len(changes)} operation{'s' if len(changes) > 1 else ''}"
    style = "yellow" if share <= 1 else "bold red"
    return Text(f"{operations}, {_figure(share)} of the allowance", style=style)


def _figure(share: float) -> str:
    return f"{share:.2f}" if share < 1000 else f"{share:.0e}"


def _print_changes(diff: EngineDiff, console: Console) -> None:
    """Each operation that changed by itself, or, where none did, what is downstream of nothing."""
    seen: dict[str, list[tuple[Change, Comparison]]] = {}
    for comparison in diff.comparisons:
        for change in comparison.changes or comparison.downstream:
            seen.setdefault(change.operation, []).append((change, comparison))
    for name, places in list(seen.items())[:SHOWN]:
        change, comparison = max(places, key=lambda p: (p[0].problem is not None, p[0].share))
        style = "yellow" if all(c.within for c, _ in places) else "bold red"
        at = f"  {change.place}" if change.place else ""
        console.print(Text.assemble(("changed  ", style), f"{name}{at}"), soft_wrap=True)
        figures = change.problem or (
            f"{change.rows:,} rows differ, by {change.difference:.2e} of a row's scale at most, "
            f"{_figure(change.share)} of the allowance"
        )
        console.print(
            f"         first at {change.probe}: {figures}", soft_wrap=True, highlight=False
        )
        more = f", and {len(places) - 1} more runs" if len(places) > 1 else ""
        run = f"{comparison.case}, {comparison.candidate}, {comparison.schedule}{more}"
        console.print(f"         {run}", style="dim", markup=False)
    if len(seen) > SHOWN:
        console.print(f"... and {len(seen) - SHOWN} more operations; --json has them all")
    answers = [(a, f) for a in diff.answers for f in a.changed]
    for a, f in answers[:SHOWN]:
        line = f"{f.stage} of {f.text!r}: {f.got!r}, before {f.expected!r}  {a.case}, {a.what}"
        console.print(Text.assemble(("changed  ", "bold red"), line), soft_wrap=True)
    if len(answers) > SHOWN:
        console.print(f"... and {len(answers) - SHOWN} more answers; --json has them all")
