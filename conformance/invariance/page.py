"""The matrix as one self-contained page, in the dress of the report of a check; it loads nothing."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from conformance.invariance.axes import RULES
from conformance.invariance.run import Matrix
from conformance.invariance.verdict import Verdict
from conformance.report import words
from conformance.report.page import filled, step_of


def write_html(matrix: Matrix, path: Path) -> None:
    """Writes the page."""
    page = filled(
        "invariance/page.html",
        matrix=matrix,
        axes=[(axis, list(rows)) for axis, rows in groupby(matrix.rows, lambda row: row.axis)],
        verdicts=list(Verdict),
        ties=[outcome for outcome in matrix.outcomes if outcome.verdict == Verdict.TIE],
        reasons=dict.fromkeys(rule.reason for rule in RULES),
        step=step_of,
        words=words,
    )
    path.write_text(page, encoding="utf-8")
