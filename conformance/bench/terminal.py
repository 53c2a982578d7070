"""A run on a terminal, 100 columns wide: limits, scenarios by form, stages, growth, what fell."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from conformance.bench.forms import AGAINST
from conformance.bench.growth import Growth, Point
from conformance.bench.result import Bench
from conformance.bench.stages import PASS_STAGES, TEXT_STAGES
from engine.memory import mebibytes


def print_bench(bench: Bench, console: Console) -> None:
    """Everything that was measured; medians, and beside a ratio half of its rounds' spread."""
    seen = bench.environment
    console.print(
        f"{bench.model['name']}  {bench.model['parameters'] / 1e6:,.1f} M parameters, {bench.dtype}, "
        f"{bench.rounds} rounds in turns",
        highlight=False,
    )
    console.print(
        f"{seen['date']}  {seen['processor']}, {seen['threads']} threads, torch {seen['torch']}, "
        f"transformers {seen['transformers']}",
        style="dim",
        highlight=False,
    )
    if limits := bench.limits:
        rates = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in limits.matrix.items())
        console.print(
            f"limits: memory {limits.bandwidth / 1e9:.1f} GB/s (a product of one row "
            f"{limits.row / 1e9:.1f}), matrices in GFLOP/s: {rates}",
            highlight=False,
        )
    console.print(_scenarios(bench))
    console.print(_starts(bench))
    if bench.stages:
        console.print(_stages(bench.stages))
    if bench.growth:
        for table in _growth(bench.growth):
            console.print(table)
    for note in bench.skipped:
        console.print(f"skipped  {note}", style="yellow", markup=False, highlight=False)
    if bench.falls is not None:
        _print_falls(bench, console)


#: Whom a column of ratios is against, in few letters.
_HEADINGS = {"transformers": "x transf.", "transformers-compiled": "x its best", "eager": "x eager"}


def _scenarios(bench: Bench) -> Table:
    rivals = [name for name in AGAINST if any(r.against == name for r in bench.ratios)]
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for column in ("median", *(_HEADINGS[name] for name in rivals), "of limit"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("ids", overflow="fold")
    for scenario in bench.played.scenarios:
        table.add_row(scenario.name, style="bold")
        for form in bench.forms:
            seconds = bench.seconds(scenario.name, form.name)
            if seconds is not None:
                table.add_row(
                    f"  {form.name}",
                    f"{scenario.tokens / seconds:,.1f}/s" if scenario.tokens else duration(seconds),
                    *(_ratio(bench, scenario.name, form.name, rival) for rival in rivals),
                    _share(bench, scenario.name, form.name),
                    bench.differing.get(scenario.name, {}).get(form.name, ""),
                )
    table.add_row("memory while answering", style="bold")
    for form in bench.forms:
        against = (_ratio(bench, "memory", form.name, rival) for rival in rivals)
        taken = mebibytes(bench.played.memory[form.name]["answer"])
        table.add_row(f"  {form.name}", taken, *against, "", "")
    return table


def _ratio(bench: Bench, scenario: str, form: str, against: str) -> str:
    """The median, and how far the rounds lie from the middle between their extremes."""
    found = bench.ratio(scenario, form, against)
    if found is None:
        return ""
    value = found.value
    spread = (value.most - value.least) / 2
    return f"{value.median:.2f} ±{spread:.2f}" if spread else f"{value.median:.2f}"


def _share(bench: Bench, scenario: str, form: str) -> str:
    found = bench.ratio(scenario, form, "limit")
    return "" if found is None else f"{found.value.median:.0%}"


def duration(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.2f} ms"


def _starts(bench: Bench) -> Table:
    """Once for each form: what a start took, compiling included, and its memory."""
    table = Table(box=None, pad_edge=False)
    for column in ("start", "loaded in", "first answer", "libraries", "peak until answering"):
        table.add_column(column, justify="left" if column == "start" else "right")
    for form in bench.forms:
        start, taken = bench.played.starts[form.name], bench.played.memory[form.name]
        table.add_row(
            form.name,
            duration(start["loaded"]),
            duration(start["first_answer"]),
            mebibytes(taken["before"]),
            mebibytes(taken["start"]),
        )
    return table


def _stages(stages: dict[str, dict[str, dict[str, float | None]]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for form in stages:
        table.add_column(form, justify="right")
        table.add_column("tensors", justify="right")
    load, tokenize, detokenize = TEXT_STAGES
    passes = [f"{kind}.{stage}" for kind in ("prompt", "step") for stage in PASS_STAGES]
    for stage in (load, tokenize, *passes, detokenize):
        cells = []
        for figures in stages.values():
            if stage not in figures:
                cells += ["", ""]
                continue
            seconds, taken = figures[stage]["seconds"], figures[stage]["bytes"]
            cells += [
                duration(seconds or 0.0),
                "" if taken is None else f"{taken / 2**10:,.0f} KiB",
            ]
        table.add_row(stage.replace(".", ": "), *cells)
    return table


def _growth(growth: Growth) -> list[Table]:
    return [
        _against("a step, by tokens in view", growth.steps),
        _against("a prompt, by its length", growth.prefills),
        _against("a step, by answers at once", growth.batches),
        _lines(growth),
    ]


def _against(what: str, points: Sequence[Point]) -> Table:
    forms = list(dict.fromkeys(point.form for point in points))
    table = Table(box=None, pad_edge=False)
    table.add_column(what)
    for form in forms:
        table.add_column(form, justify="right")
    table.add_column("limit", justify="right")
    for size in dict.fromkeys(point.size for point in points):
        row = {point.form: point for point in points if point.size == size}
        cells = [duration(row[form].seconds) if form in row else "" for form in forms]
        table.add_row(f"{size:,}", *cells, duration(next(iter(row.values())).limit))
    return table


def _lines(growth: Growth) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("a step is", "height", "expected", "per 1,000 tokens in view", "expected"):
        table.add_column(column, justify="left" if column == "a step is" else "right")
    for form, line in growth.lines.items():
        expected = growth.expected[form]
        table.add_row(
            form,
            duration(line.height),
            duration(expected.height),
            duration(1000 * line.slope),
            duration(1000 * expected.slope),
        )
    return table


def _print_falls(bench: Bench, console: Console) -> None:
    for fall in bench.falls or []:
        console.print(f"fell  {fall}", style="bold red", markup=False, highlight=False)
    if not bench.falls:
        console.print("no ratio fell", style="bold green")
