"""A run on a terminal, 100 columns wide, and as Markdown for `docs/measurements`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from conformance.bench.serving.result import Figures, Served

_COLUMNS = (
    "requests/s",
    "answered",
    "at once",
    "most",
    "first, P50",
    "P99",
    "between, P50",
    "P99",
    "tokens/s",
    "MiB",
)


def print_served(served: Served, console: Console) -> None:
    """The figures of every rate, and which of them keep the promise."""
    seen = served.environment
    console.print(
        f"{served.model}  {seen['date']}  {seen['processor']}, {seen['threads']} threads",
        style="dim",
        highlight=False,
    )
    for form, figures in served.forms.items():
        table = Table(box=None, pad_edge=False, title=form, title_justify="left")
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for one in figures:
            table.add_row(*_cells(one), style="" if one.holds else "yellow")
        console.print(table)
    for form in served.forms:
        console.print(served.promise(form), markup=False, highlight=False)


def markdown(served: Served) -> str:
    """A heading, machine and load, and for each form a table and what it means."""
    return "\n".join(_lines(served)) + "\n"


def _lines(served: Served) -> Iterator[str]:
    seen, load = served.environment, served.load
    yield f"# {seen['date'][:10]}: how a server holds up"
    yield ""
    yield (
        f"{served.model}, {seen['processor']}, {seen['threads']} threads, device {seen['device']}, torch "
        f"{seen['torch']}, Python {seen['python']}. Requests come at random moments, so many a second, for "
        f"{load.seconds:g} s, whether or not earlier ones are done; prompts of {load.prompt[0]} to "
        f"{load.prompt[1]} tokens and answers of {load.answer[0]} to {load.answer[1]}, greedy and streamed. "
        "Times to the first token count from when a request was due. At once: requests in the server, on "
        "average and at most. Memory: resident, at the start and the end of the time, in MiB."
    )
    for form, figures in served.forms.items():
        yield ""
        yield f"| {form}: {' | '.join(_COLUMNS)} |"
        yield "|---" * len(_COLUMNS) + "|"
        for one in figures:
            yield f"| {' | '.join(_cells(one))} |"
    for form in served.forms:
        yield ""
        yield f"{served.promise(form)}."


def _cells(one: Figures) -> list[str]:
    return [
        f"{one.rate:g}",
        f"{one.outcomes.get('done', 0)} of {one.requests}",
        f"{one.in_flight:.1f}",
        f"{one.most_in_flight}",
        _milliseconds(one.first.p50),
        _milliseconds(one.first.p99),
        _milliseconds(one.between.p50),
        _milliseconds(one.between.p99),
        f"{one.tokens_per_second:,.1f}",
        "–".join(f"{held / 2**20:,.0f}" for _, held in (one.memory[0], one.memory[-1])),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:,.0f} ms"
