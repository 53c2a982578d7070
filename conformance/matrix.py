"""The checks of one model as pytest items: for each candidate and way to feed it, one per kind of check.

Items fail with findings, each on a line, with what it made wrong and its worst elements below. What
keeps a check from being made is an error of its setup, and what a candidate does not show is a skip,
each in one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from conformance.candidate import Candidate, Factory, Level, factory, level_of, made
from conformance.check import ENGINE
from conformance.generation import answer
from conformance.golden import Golden, is_golden
from conformance.live import golden_of
from conformance.report.words import choice, message
from conformance.verdict import Trial, trial
from engine.device import DTYPES, check_device, check_dtype
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.models import resolve

KINDS = ("words", "logits", "operations", "cache")


def kind_of(probe: str) -> str:
    """The kind of check that a probe's findings belong to."""
    kinds = {Level.L1: "words", Level.L4: "operations", Level.L5: "cache"}
    return kinds.get(level_of(probe), "logits")


@dataclass
class Matrix:
    """A model, its golden and the candidates; everything is made once, when first asked for."""

    model: str
    golden_folder: str | None
    device: str
    dtype: str
    make: Factory
    config: pytest.Config
    _trials: dict[tuple[str, int | None], Trial] = field(default_factory=dict)
    _failed: LockstepError | None = None

    @cached_property
    def path(self) -> Path:
        return resolve(self.model)

    @cached_property
    def candidates(self) -> Sequence[Candidate]:
        check_dtype(self.dtype)
        check_device(self.device)
        return made(self.make, self.path, self.device, self.dtype)

    @cached_property
    def golden(self) -> Golden:
        if self._failed is not None:  # making it takes a while: not once for every item
            raise self._failed
        try:
            if self.golden_folder or is_golden(self.path):  # a golden brings its model along
                return Golden(Path(self.golden_folder or self.path))
            return Golden(golden_of(self.model, self.path, self.dtype, self._say))
        except LockstepError as error:
            self._failed = error
            raise

    def trial(self, candidate: Candidate, chunk: int | None) -> Trial:
        if (candidate.name, chunk) not in self._trials:
            schedule = self.golden.schedule_in(chunk)
            found = trial(candidate, self.golden, DTYPES[self.dtype], schedule)
            self._trials[candidate.name, chunk] = found
        return self._trials[candidate.name, chunk]

    def _say(self, message: str) -> None:
        """Progress is for the eyes, whatever pytest captures."""
        capture: Any = self.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(message, file=sys.stderr, flush=True)  # noqa: T201


def model_checks(session: pytest.Session) -> list[pytest.Item]:
    """The items that the options of a session ask for; a usage error where a factory has no such name."""
    option = session.config.getoption
    try:
        make = factory(option("--lockstep-candidate") or ENGINE)
    except RequestError as error:
        raise pytest.UsageError(str(error)) from None
    model, device, dtype = (option(f"--lockstep-{o}") for o in ("model", "device", "dtype"))
    about = f"{Path(model).name}, {device}, {dtype}"
    checks: ModelChecks = ModelChecks.from_parent(
        session, name=f"lockstep[{about}]", nodeid=f"lockstep[{about}]"
    )
    golden = option("--lockstep-golden")
    checks.matrix = Matrix(model, golden, device, dtype, make, session.config)
    items = checks.collect()
    for item in items:
        item.add_marker("lockstep")
    return items


class ModelChecks(pytest.Collector):
    """The items of one model; a single one that says why, where there are no candidates."""

    matrix: Matrix

    def collect(self) -> list[pytest.Item]:
        try:
            candidates = self.matrix.candidates
        except LockstepError as error:
            return [NoCandidates.from_parent(self, name="candidates", reason=str(error))]
        return [
            Check.from_parent(
                self,
                name=f"{candidate.name}, {_fed(chunk)}: {kind}",
                candidate=candidate,
                chunk=chunk,
                kind=kind,
            )
            for candidate in candidates
            for chunk in (candidate.prefill if candidate.level > Level.L0 else (None,))
            for kind in KINDS
        ]


def _fed(chunk: int | None) -> str:
    return "whole prompt" if chunk is None else f"chunks of {chunk}"


class NoCandidates(pytest.Item):
    """An error, and no failure: nothing was judged."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def setup(self) -> None:
        pytest.fail(self.reason, pytrace=False)

    def runtest(self) -> None:
        """Never reached."""


class Check(pytest.Item):
    """One kind of check of one candidate, fed in one way."""

    def __init__(
        self, *, candidate: Candidate, chunk: int | None, kind: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.candidate, self.chunk, self.kind = candidate, chunk, kind
        assert isinstance(self.parent, ModelChecks)
        self.matrix = self.parent.matrix

    def setup(self) -> None:
        """Everything that can go wrong without being the candidate's fault."""
        try:
            self._skip_what_is_not_shown()
            self.problems: list[str] = []
            if self.candidate.level > Level.L0:
                self.problems += self._findings(self.matrix.trial(self.candidate, self.chunk))
            if self.kind == "words":
                self.problems += self._words()
        except LockstepError as error:
            pytest.fail(str(error), pytrace=False)

    def runtest(self) -> None:
        if self.problems:
            pytest.fail("\n".join(self.problems), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return Path(__file__), None, f"{self.parent.name if self.parent else ''}: {self.name}"

    def _skip_what_is_not_shown(self) -> None:
        if self.kind == "words":
            if self.candidate.level == Level.L0 and "text" not in self.matrix.golden.manifest:
                pytest.skip(f"{self.candidate.name} shows text alone, and the golden has none")
            return
        probes = self._probes()
        if not probes:
            pytest.skip(f"the golden {self.matrix.golden.case} watches no {self.kind}")
        if not any(map(self.candidate.offers, probes)):
            beyond = self.candidate.beyond(Level.L5)
            pytest.skip(beyond or f"{self.candidate.name} has no {self.kind}")

    def _probes(self) -> list[str]:
        """What the golden has for this kind of check, for candidates of any level."""
        levels = (Level.L1, Level.L2, Level.L5)
        found = [probe for level in levels for probe in self.matrix.golden.probes(level)]
        return [probe for probe in found if kind_of(probe) == self.kind]

    def _words(self) -> Iterator[str]:
        """What is wrong with the candidate's own loop."""
        golden, level = self.matrix.golden, self.candidate.level
        known = level > Level.L0 and not self.matrix.trial(self.candidate, self.chunk).conforms
        envelope = golden.envelope("free", DTYPES[self.matrix.dtype])
        try:
            said = answer(self.candidate, golden, envelope, level, known_to_diverge=known)
        except ModelFileError as error:
            if not self.problems:
                pytest.skip(f"{self.candidate.name} says no words: {error}")
            return
        if level == Level.L0 and said.text is None:
            pytest.skip(f"{self.candidate.name} is of level L0 and says no words")
        yield from map(str, said.findings)
        if said.follows:
            yield "the answer differs, as the operations that are blamed make it"

    def _findings(self, trial: Trial) -> Iterator[str]:
        """What the trial found of this kind."""
        reached = {standing.probe for standing in trial.whole} | {"next_id", "logprobs"}
        missing = [p for p in self._probes() if self.candidate.offers(p) and p not in reached]
        if missing:
            yield f"{missing[0]} was never reached, nor {len(missing) - 1} more"
        for culprit in trial.culprits:
            if kind_of(culprit.finding.probe) == self.kind:
                yield message(trial, culprit)
        for finding in trial.propagated:
            probe = finding.probe
            if kind_of(probe) == self.kind and (self.kind == "logits" or not trial.culprits):
                yield f"{finding} in the free run"
        if self.kind == "words":
            yield from (choice(d) for d in trial.disagreements if not d.is_tie)
