"""The matrix on a terminal: a line for each value of each axis, the bugs, the sum."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.invariance.run import Matrix
from conformance.invariance.verdict import Verdict
from conformance.report.words import share


def print_matrix(matrix: Matrix, console: Console) -> None:
    """What each value was tried in, and what became of it."""
    table = Table(box=None, pad_edge=False)
    for column in ("axis", "value", "cells", *Verdict, "worst"):
        table.add_column(column, justify="left" if column in ("axis", "value") else "right")
    before = ""
    for row in (*matrix.rows, matrix.all):
        axis = row.axis if row.axis != before else ""
        counts = [len(row.outcomes), *map(row.count, Verdict)]
        table.add_row(axis, row.value, *map(str, counts), share(row.worst) if row.outcomes else "")
        before = row.axis
    console.print(table)
    said = "worst: the largest share of an allowance, where 1 is the limit"
    console.print(said, style="dim", highlight=False)
    for outcome in matrix.bugs:
        console.print(Text.assemble(("BUG  ", "bold red"), f"{outcome.cell}: {outcome.said}"))
    done = f"{len(matrix.outcomes)} cells in {matrix.seconds:.0f} s"
    if matrix.bugs:
        console.print(f"diverges: {len(matrix.bugs)} of {done}", style="bold red", highlight=False)
    else:
        console.print(f"conforms: {done}", style="bold green", highlight=False)
