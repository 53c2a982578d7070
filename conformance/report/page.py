"""A report as one self-contained page: `page.html` with its style and script inside, and the standings.

It loads nothing, from disk or from a network. Its size is bounded: where prompts are long or models
large, neighbouring positions share a column, which shows the largest of them and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance.candidate import layer_of, operation
from conformance.judgement import Standing
from conformance.report import words
from conformance.report.report import Report, paired
from conformance.verdict import Culprit, Trial

NUMBERS = 250_000  # shares on a page, about 6 bytes each
COLUMNS = (8, 64)  # of positions, at least and at most
LISTED = 20  # lines of a list

#: Upper ends of the steps of colour, in shares of the allowance; 1 is the border.
STEPS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, math.inf)


def filled(template: str, **values: Any) -> str:
    """The page that a template below `conformance/` makes of these values."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("conformance", ""),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def write_html(report: Report, path: Path) -> None:
    """Writes the page."""
    views = [_View(trial, number, report) for number, trial in enumerate(report.trials)]
    wrong = [v for v in views if not v.trial.conforms]
    ties = [
        f"{v.title}: {words.choice(d)}" for v in views for d in v.trial.disagreements if d.is_tie
    ]
    page = filled(
        "report/page.html",
        report=report,
        views=views,
        opened=(wrong or views)[:1],
        most=LISTED,
        ties=ties,
        first=next(((v, c) for v in views for c in v.trial.culprits), None),
        steps=STEPS,
        words=words,
        data=[v.data() for v in views],
    )
    path.write_text(page, encoding="utf-8")


@dataclass(frozen=True)
class Cell:
    """One probe in a map; `number` finds it in the page's data."""

    number: int
    probe: str
    share: float
    guilty: bool
    problem: str | None

    @property
    def step(self) -> int:
        return step_of(self.share)

    @property
    def text(self) -> str:
        return "!" if self.problem else words.share(self.share)

    @property
    def label(self) -> str:
        said = self.problem or f"{words.share(self.share)} of its allowance"
        return f"{self.probe}: {said}{', culprit' if self.guilty else ''}"


@dataclass(frozen=True)
class Map:
    """Layers by operations; what lies before and behind the layers fills a line of its own."""

    title: str
    explained: str
    before: Sequence[Cell]
    layers: Sequence[tuple[int, Sequence[Cell | None]]]
    behind: Sequence[Cell]


class _View:
    """A trial as the page shows it."""

    def __init__(self, trial: Trial, number: int, report: Report) -> None:
        self.trial, self.number = trial, number
        self.rows = list(paired(trial))
        self.numbers = {probe: n for n, (probe, *_) in enumerate(self.rows)}
        self.culprits = {c.finding.probe: c for c in trial.culprits}
        same = [t for t in report.trials if t.case == trial.case]
        self.columns = operations([_probes(t) for t in same])
        self.positions = max((s.shares.shape[1] for s in _standings(trial)), default=1)
        heads = sum(s.shares.shape[0] for t in report.trials for s in _standings(t))
        fewest, most = COLUMNS
        columns = max(fewest, min(most, NUMBERS // max(heads, 1)))
        self.width = math.ceil(self.positions / columns)  # positions in one column

    @property
    def title(self) -> str:
        return f"{self.trial.case}, {self.trial.candidate}"

    @property
    def fed(self) -> str:
        """How the tokens were fed: `21, then 6 times 1`."""
        runs: list[list[int]] = []
        for size in self.trial.schedule:
            if runs and runs[-1][0] == size:
                runs[-1][1] += 1
            else:
                runs.append([size, 1])
        return ", then ".join(f"{size}" if n == 1 else f"{n} times {size}" for size, n in runs)

    @property
    def bugs(self) -> list[str]:
        return [words.choice(d) for d in self.trial.disagreements if not d.is_tie]

    @property
    def maps(self) -> Iterator[Map]:
        if self.trial.own:
            explained = "lockstep run: each operation starts from the reference's values"
            yield self._map("Own error", explained, self.trial.own)
        explained = "free run: errors are handed on, as in production"
        yield self._map("Propagated error", explained, self.trial.whole)

    def _map(self, title: str, explained: str, standings: Sequence[Standing]) -> Map:
        cells = [
            Cell(self.numbers[s.probe], s.probe, s.worst, s.probe in self.culprits, s.problem)
            for s in standings
        ]
        inside = [(layer, c) for c in cells if (layer := layer_of(c.probe)) is not None]
        first = inside[0][1].number if inside else math.inf
        outer = [c for c in cells if layer_of(c.probe) is None]
        at = {(layer, operation(c.probe)): c for layer, c in inside}
        layers = [
            (layer, [at.get((layer, column)) for column in self.columns])
            for layer in sorted({layer for layer, _ in inside})
        ]
        before = [c for c in outer if c.number < first]
        return Map(title, explained, before, layers, [c for c in outer if c not in before])

    def data(self) -> dict[str, Any]:
        """What the script shows when a cell is chosen."""
        findings: dict[str, list[str]] = {}
        for culprit in self.trial.culprits:
            findings[culprit.finding.probe] = list(culprit_lines(self.trial, culprit))
        for found in self.trial.propagated:
            lines = [words.seen(found), words.source(found)]
            findings[found.probe] = [line for line in lines if line] + [*words.elements(found)]
        return {
            "chosen": self._chosen(),
            "positions": self.positions,
            "width": self.width,
            "probes": [
                {
                    "name": probe,
                    "layer": layer_of(probe),
                    "operation": operation(probe),
                    "own": own and self._standing(own),
                    "whole": whole and self._standing(whole),
                    "said": findings.get(probe, []),
                }
                for probe, own, whole in self.rows
            ],
        }

    def _chosen(self) -> int | None:
        """The probe that is shown before any is chosen: the first culprit, else the worst."""
        worst = [
            self.trial.worst[run][0] for run in ("lockstep", "free") if run in self.trial.worst
        ]
        probe = next((p for p in (*self.culprits, *worst) if p in self.numbers), None)
        return None if probe is None else self.numbers[probe]

    def _standing(self, standing: Standing) -> dict[str, Any]:
        return {
            "worst": words.share(standing.worst),
            "problem": standing.problem,
            "shares": None if standing.problem else binned(standing.shares, self.width),
        }


def culprit_lines(trial: Trial, culprit: Culprit) -> Iterator[str]:
    """All there is to say about a culprit, a line each."""
    finding = culprit.finding
    yield f"culprit, {words.seen(finding)}"
    if culprit.place:
        yield f"written at {culprit.place}" if culprit.file else culprit.place
    yield words.proof(culprit)
    if said := words.following(trial, culprit):
        yield said
    yield from words.elements(finding)


def operations(orders: Sequence[Sequence[str]]) -> list[str]:
    """The operations of a layer in the reference's order, from the fullest of several trials."""
    fullest = sorted(orders, key=len, reverse=True)
    inside = (operation(p) for order in fullest for p in order if layer_of(p) is not None)
    return list(dict.fromkeys(inside))


def step_of(share: float) -> int:
    """The step of colour for a share."""
    return next(n for n, end in enumerate(STEPS) if share <= end)


def binned(shares: Tensor, width: int) -> list[list[float | None]]:
    """[heads, columns], the largest of `width` positions each, in three digits; None unmeasured."""
    known = shares.masked_fill(shares.isnan(), -torch.inf)
    whole = pad(known, (0, -known.shape[1] % width), value=-torch.inf)
    columns = whole.unflatten(1, (-1, width)).amax(-1)
    return [[None if x == -math.inf else _rounded(x) for x in row] for row in columns.tolist()]


def _rounded(share: float) -> float:
    """Three digits; what is beyond every number is beyond every colour as well."""
    return round(share, 3) if share < 1 else float(f"{min(share, 1e300):.3g}")


def _standings(trial: Trial) -> tuple[Standing, ...]:
    return (*trial.own, *trial.whole)


def _probes(trial: Trial) -> list[str]:
    return [probe for probe, *_ in paired(trial)]
