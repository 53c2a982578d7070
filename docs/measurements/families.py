"""How near the engine comes to what each family's goldens allow: `python docs/measurements/families.py`.

A line per family, then one per case: probes, and the worst share of an allowance that an operation used
(lockstep) and a whole run (free), where 1 is the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from conformance.cases import CASES
from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS
from conformance.report import Report

DTYPES = ("float32", "bfloat16")
RUNS = ("lockstep", "free")


def line(name: str, *counts: int, reports: Sequence[Sequence[Report]]) -> str:
    """A row of a table; `reports` holds one sequence of reports for each of DTYPES."""
    shares = [
        max((t.worst[run] for report in reports_of for t in report.trials), key=lambda w: w[1])
        for reports_of in reports
        for run in RUNS
    ]
    conform = all(report.exit_status == 0 for reports_of in reports for report in reports_of)
    figures = [f"{share:.2f} `{probe}`" for probe, share in shares]
    cells = [name, *map(str, counts), *figures, "conforms" if conform else "DIVERGES"]
    return f"| {' | '.join(cells)} |"


def head(*columns: str) -> str:
    names = [*columns, *(f"{dtype}, {run}" for dtype in DTYPES for run in RUNS), ""]
    return f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}"


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, list[list[Report]]] = {}
    for case in CASES:
        folder = REPOSITORY_GOLDENS / case.name
        found[case.name] = [[run_check(golden=folder, dtype=dtype)] for dtype in DTYPES]
    # The first trial is eager and sees every probe.
    probes = {name: reports[0][0].trials[0].probes for name, reports in found.items()}
    print(head("family", "cases", "probes"))
    for family in dict.fromkeys(case.family for case in CASES):
        names = [case.name for case in CASES if case.family == family]
        whole = [[found[name][n][0] for name in names] for n in range(len(DTYPES))]
        print(line(family, len(names), sum(probes[name] for name in names), reports=whole))
    print(head("case", "probes"))
    for name, reports in found.items():
        print(line(name, probes[name], reports=reports))


if __name__ == "__main__":
    main()
