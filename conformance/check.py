"""`lockstep check`: candidates against goldens, or against transformers run for the occasion."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from conformance.answers import Answers, check_answers
from conformance.beams import check_beams
from conformance.candidate import Candidate, Factory, Level, NotOfferedError, factory, made
from conformance.capsule import Capsule, Packer, is_capsule
from conformance.capsule.draft import Run
from conformance.decisions import check_decisions
from conformance.generation import answer
from conformance.golden import (
    REPOSITORY_GOLDENS,
    Golden,
    holds_goldens,
    is_golden,
    read_manifest,
    remake,
    verify_hashes,
)
from conformance.goldens import checkpoint_of, inventory, missing_checkpoint
from conformance.live import golden_of
from conformance.process import Say
from conformance.report import Report, TextTrial
from conformance.text import check_text
from conformance.tokens import check_tokens
from conformance.verdict import trial
from engine.assets import KNOWN
from engine.device import DTYPES, check_device, check_dtype
from engine.errors import LockstepError, ModelFileError, RequestError
from engine.generate.engine import Engine
from engine.models import resolve
from engine.weights import open_checkpoint

#: Whose candidates are judged unless another factory is named.
ENGINE = "conformance.engine_candidate:candidates"


def run_check(
    targets: Sequence[str] = (),
    golden: Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    level: str = "L5",
    candidate: str = ENGINE,
    say: Say = lambda _: None,
    cases: str = "*",
    packer: Packer | None = None,
) -> Report:
    """Judges a candidate on TARGETS, or on every golden where there are none.

    A target is a golden's folder or one that holds goldens, a failure capsule or a MODEL, which is compared with
    transformers where that is installed, else with the committed golden of its name. With `golden`,
    the one target is a MODEL to be compared with that. `candidate` names a factory
    (`module:function`), `cases` is a pattern that chooses among the goldens, and `packer` takes the
    first failure. Raises LockstepError where there is nothing to check.
    """
    if level not in Level.__members__:
        raise RequestError(f"no level {level!r}; there are {', '.join(Level.__members__)}")
    check_dtype(dtype)
    if golden is not None and len(targets) > 1:
        raise RequestError(f"--golden goes with one MODEL, not with {len(targets)}")
    if candidate == ENGINE:
        check_device(device)
    run = Run(candidate, device, dtype, Level[level])
    session = _Session(factory(candidate), run, say, packer)
    if golden is not None and targets:
        session.check_on(golden, resolve(targets[0]))
    elif not targets:
        session.check_folder(golden or REPOSITORY_GOLDENS, cases)
    for target in targets if golden is None else ():
        if is_capsule(Path(target)):
            session.check_capsule(Path(target))
        elif is_golden(Path(target)) or holds_goldens(Path(target)):
            session.check_folder(Path(target), cases)
        elif Path(target).parent.name == REPOSITORY_GOLDENS.name and not Path(target).exists():
            raise RequestError(f"there is no golden {target}; see: lockstep golden list")
        else:
            session.check_model(target)
    report = session.report
    if not report.trials and not report.texts:  # nobody's success, and no divergence either
        reasons = [*report.unjudged, *report.skipped] or ["no such case"]
        raise LockstepError(f"nothing was checked: {'; '.join(reasons)}")
    return report


@dataclass
class _Session:
    """One run of the check: what is judged, how, and what was found so far."""

    make: Factory
    run: Run
    say: Say
    packer: Packer | None = None
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.device, self.dtype, self.level = self.run.device, self.run.dtype, self.run.level
        self.report = Report(environment=environment(self.device, self.dtype))

    @property
    def is_engine(self) -> bool:
        """Whether this project's own engine is judged: some goldens ask for parts of it."""
        return self.make is factory(ENGINE)

    def check_model(self, model: str) -> None:
        path = resolve(model, progress=True)
        if self.is_engine:
            open_checkpoint(path)  # what it refuses is refused before the reference is asked
        self.check_on(golden_of(model, path, self.dtype, self.say), path)

    def check_capsule(self, folder: Path) -> None:
        """A failure capsule: its own candidate, unless another was named."""
        self.say(f"{folder}: a failure capsule")
        verdict = Capsule(folder).judge(None if self.run.maker == ENGINE else self.run.maker)
        if isinstance(verdict, TextTrial):
            self.report.texts.append(verdict)
        else:
            self.report.trials.append(verdict)

    def check_folder(self, root: Path, cases: str) -> None:
        """The golden in `root`, or all those below it that `cases` names."""
        folders = [root] if is_golden(root) else inventory(root)
        for folder in folders:
            if not fnmatch(folder.name, cases):
                continue
            manifest = read_manifest(folder)
            if manifest["kind"] == "tokens":
                self._check_tokens(folder, manifest)
            elif manifest["kind"] == "answers":
                self._check_answers(folder, manifest)
            elif manifest["kind"] == "beams":
                self._check_beams(folder, manifest)
            elif manifest["kind"] != "model":
                self._check_stages(folder, manifest)
            elif (path := checkpoint_of(folder, manifest)) is None:
                self.report.skipped.append(missing_checkpoint(folder, manifest))
            else:
                self.check_on(folder, path)

    def _check_stages(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """A golden of the tokenizer's stages, or of those from logits to an answer's end."""
        of_text = manifest["kind"] == "text"
        if not self.is_engine:
            asked = "tokenizer" if of_text else "sampler and loop"
            self.report.skipped.append(f"{folder.name}: it asks this project's own {asked}")
            return
        verify_hashes(folder, manifest)
        if of_text:
            self.say(f"{folder.name}: every stage of the tokenizer")
            answers = TextTrial(folder.name, "tokenizer", tuple(check_text(folder)))
        else:
            self.say(f"{folder.name}: sampling, stopping and log-probabilities")
            answers = TextTrial(folder.name, "decisions", tuple(check_decisions(folder)))
        self.report.texts.append(answers)
        if self.packer is not None:
            pack = self.packer.text if of_text else self.packer.decision
            pack(folder, answers.findings, self.run)

    def _check_tokens(self, folder: Path, manifest: dict[str, Any]) -> None:
        """A golden of a real tokenizer's ids over one text."""
        path = checkpoint_of(folder, manifest)
        if not self.is_engine:
            self._skip(f"{folder.name}: it asks this project's own tokenizer")
        elif path is None:
            self._skip(missing_checkpoint(folder, manifest))
        else:
            verify_hashes(folder, manifest)
            self.say(f"{folder.name}: ids, offsets and text of {manifest['checkpoint']}")
            findings = tuple(check_tokens(folder, manifest, path))
            self.report.texts.append(TextTrial(folder.name, "tokenizer", findings))

    def _check_answers(self, folder: Path, manifest: dict[str, Any]) -> None:
        """A golden of a real model's logits and answers far from position 0."""
        path = checkpoint_of(folder, manifest)
        if not self.is_engine:
            self._skip(f"{folder.name}: it asks this project's own prefill and decode")
        elif path is None:
            self._skip(missing_checkpoint(folder, manifest))
        elif self.dtype not in (golden := Answers(folder)).dtypes:
            self._skip(f"{folder.name}: it has no answers in {self.dtype}")
        else:
            self.say(f"{folder.name}: answers to long prompts in {self.dtype}")
            engine = Engine.load(path, device=self.device, dtype=self.dtype)
            heard = check_answers(engine, golden, self.dtype)
            self.say(f"{folder.name}: {heard.tokens} tokens, {heard.ties} of them at ties")
            self.report.texts.append(TextTrial(folder.name, "answers", tuple(heard.findings)))

    def _check_beams(self, folder: Path, manifest: dict[str, Any]) -> None:
        """A golden of a model's beam searches."""
        path = checkpoint_of(folder, manifest)
        if not self.is_engine:
            self._skip(f"{folder.name}: it asks this project's own beam search")
        elif path is None:
            self._skip(missing_checkpoint(folder, manifest))
        elif self.dtype != "float32":
            self._skip(f"{folder.name}: it knows what float32 may miss, not {self.dtype}")
        else:
            verify_hashes(folder, manifest)
            self.say(f"{folder.name}: beam searches")
            engine = Engine.load(path, device=self.device, dtype=self.dtype)
            findings = tuple(check_beams(engine, folder))
            self.report.texts.append(TextTrial(folder.name, "beams", findings))

    def check_on(self, folder: Path, model: Path) -> None:
        """One model golden: every candidate in lockstep and freely, then its own loop."""
        golden = Golden(folder)
        known = KNOWN.get(str(golden.manifest["checkpoint"]))
        if known is not None and golden.manifest["checkpoint_sha256"] != known.files[0].sha256:
            raise ModelFileError(
                f"{folder.name} was made with another {known.name}; {remake(golden.case)}"
            )
        if lacking := golden.lacks(self.dtype):
            self._skip(lacking)
            return
        try:
            candidates = made(self.make, model, self.device, self.dtype)
        except NotOfferedError as error:
            self._skip(f"{golden.case}: {error}")
            return
        except LockstepError as error:  # the other goldens are judged all the same
            self.report.unjudged.append(f"{golden.case}: {error}")
            return
        dtype = DTYPES[self.dtype]
        for candidate in candidates:
            trials = []
            for chunk in candidate.prefill if min(self.level, candidate.level) > Level.L0 else ():
                self.say(f"{golden.case}: {candidate.name} in {self.dtype}")
                schedule = golden.schedule_in(chunk)
                trials.append(trial(candidate, golden, dtype, schedule, self.level))
            self.report.trials += trials
            if any(len(t.unjudged) == len(golden.ids) for t in trials):
                self.report.unjudged.append(
                    f"{golden.case}: all tokens' experts are a tie, and {candidate.name} does not show them"
                )
            if self.packer is not None:
                self.packer.operation(candidate, trials, golden, model, self.run)
            self._skip(candidate.beyond(self.level))
            diverges = not all(t.conforms for t in trials)
            self._listen(candidate, golden, model, known_to_diverge=diverges)

    def _skip(self, note: str | None) -> None:
        """Notes once what could not be looked at."""
        if note is not None and note not in self.report.skipped:
            self.report.skipped.append(note)

    def _listen(
        self, candidate: Candidate, golden: Golden, model: Path, *, known_to_diverge: bool
    ) -> None:
        """The candidate's own loop: what it says of the golden's prompt."""
        text_alone = min(self.level, candidate.level) == Level.L0
        if text_alone and "text" not in golden.manifest:
            self._skip(f"{golden.case}: it has no text")
            return
        envelope = golden.envelope("free", DTYPES[self.dtype])
        try:
            said = answer(
                candidate, golden, envelope, self.level, known_to_diverge=known_to_diverge
            )
        except ModelFileError as error:
            self._skip(f"{golden.case}: its words, as {error}")
            return
        if not said.heard or (text_alone and said.text is None):
            self._skip(f"{candidate.name} has no loop of its own")
            return
        what = "generation" if self.is_engine else f"{candidate.name}, generation"
        heard = TextTrial(golden.case, what, said.findings, said.text, said.follows)
        if heard not in self.report.texts:  # candidates that share a loop say the same
            self.report.texts.append(heard)
            if self.packer is not None:
                self.packer.generation(candidate, said.findings, golden, model, self.run)


def environment(device: str, dtype: str) -> dict[str, str]:
    """What a reader must know to repeat a check."""
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "dtype": dtype,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }
