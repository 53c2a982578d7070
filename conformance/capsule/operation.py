"""The capsule of an operation, or of what a trial found outside: fewest tokens, one layer, one group of heads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from conformance.candidate import Candidate, Level, layer_of, operation
from conformance.capsule.cut import Cut, CutError, one_group, one_layer, write
from conformance.capsule.draft import LIMIT, Left, Run, size, write_about, write_words
from conformance.capsule.failure import Failure, Schedule, failure_of, shortest
from conformance.capsule.replay import Capsule
from conformance.golden import Golden
from conformance.lockstep import everywhere, nowhere, walk
from conformance.tapped import Tapped
from conformance.verdict import Culprit, Trial, shorten, trial
from engine.device import DTYPES
from engine.errors import LockstepError


def pack_operation(
    draft: Path, candidate: Candidate, found: Trial, golden: Golden, model: Path, run: Run
) -> None:
    """Fills the folder `draft` with the smallest cut that shows the first failure of `found` again.

    Raises LockstepError where none does within the limit of size.
    """
    failure = failure_of(found)
    dtype = DTYPES[run.dtype]

    def shows(schedule: Schedule) -> bool:
        return failure.shown_by(trial(candidate, golden, dtype, schedule, run.level))

    # Where frequencies follow the tokens in view, a shorter prompt is another computation.
    schedule = found.schedule if golden.whole_prompts else shortest(found.schedule, shows)
    level = min(run.level, candidate.level)
    # A cache has room for all of a golden's tokens, and some faults show only where room is left.
    lengths = [n for n in (sum(schedule), sum(schedule) + 1) if n <= len(golden.ids)]
    for cut in chain.from_iterable(_cuts(golden, failure, n, level) for n in lengths):
        for path in draft.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            _write(draft, cut, candidate, found, failure, schedule, golden, model, run)
        except CutError:
            continue
        try:
            again = Capsule(draft).judge()
        except Exception:  # noqa: S112  # what the engine under test makes of a cut is no news
            continue
        if isinstance(again, Trial) and _same(again, found, failure, cut) and size(draft) <= LIMIT:
            return
    raise LockstepError(
        f"{failure.probe} of {golden.case} does not show its failure again in a folder of 1 MB"
    )


def _cuts(golden: Golden, failure: Failure, tokens: int, level: Level) -> Iterator[Cut]:
    """What to try, the smallest first."""
    order = [str(p) for p in golden.manifest["probes"]]
    if failure.kind == "culprit":
        try:
            alone = one_layer(golden, tokens, failure.probe)
            head = failure.finding.head if failure.finding else None
            try:
                yield one_group(golden, alone, failure.probe, head)
            except CutError:
                pass
            yield alone
        except CutError:
            pass
        before = order[: golden.order(failure.probe) + 1]
        yield Cut(tokens, {p: p for p in before})
        layer = layer_of(failure.probe)
        near = [p for p in before if layer_of(p) == layer or p == f"layers.{(layer or 0) - 1}.out"]
        yield Cut(tokens, {p: p for p in near})
    elif level >= Level.L4:
        yield Cut(tokens, {p: p for p in order})
    else:  # what is shown instead of logits follows from them
        known = failure.probe if failure.probe in order else "logits"
        yield Cut(tokens, {known: known})


def _write(
    draft: Path,
    cut: Cut,
    candidate: Candidate,
    found: Trial,
    failure: Failure,
    schedule: Schedule,
    golden: Golden,
    model: Path,
    run: Run,
) -> None:
    (draft / "golden").mkdir()
    single = len(schedule) > 1 and set(schedule[1:]) == {1}
    changes = {"prompt_tokens": schedule[0]} if single else {}
    write(cut, golden, model, run.dtype, draft / "golden", changes)
    here = cut.probes.get(failure.probe, failure.probe)
    culprit = found.culprits[0] if found.culprits else None
    layers = {n for p in golden.manifest["probes"] if (n := layer_of(p)) is not None}
    n_layers = 1 + max(layers, default=0)
    left = Left(
        tokens=(sum(found.schedule), cut.tokens),
        steps=(len(found.schedule), len(schedule)),
        layers=(n_layers, n_layers if cut.layer is None else 1),
        heads=_heads(golden, cut),
    )
    write_about(
        draft,
        run,
        kind="operation",
        case=golden.case,
        name=candidate.name,
        failure=_line(failure, culprit, found),
        left=left,
        schedule=list(schedule),
        probe=failure.probe,
        probe_here=here,
        file=shorten(culprit.file) if culprit and culprit.file else None,
        line=culprit and culprit.line,
    )
    notes = [f"{failure.probe} is {here} here, fed in steps of {', '.join(map(str, schedule))}."]
    if cut.layer is not None and cut.layer > 0:
        notes.append("The embedding table holds that layer's input, a row for each token.")
    if not (draft / "golden" / "model.safetensors").exists() and cut.layer is None:
        named = json.loads((draft / "golden" / "manifest.json").read_text())["checkpoint"]
        notes.append(f"Layers and heads are whole: the weights are taken from the model {named}.")
    others = sorted({c.finding.probe for c in found.culprits} - {failure.probe}, key=golden.order)
    if others:
        notes.append(f"The same run also blames {', '.join(others)}.")
    write_words(draft, left, notes)
    evidence = _evidence(candidate, failure, schedule, golden, run)
    if evidence:
        save_file(evidence, draft / "evidence.safetensors")


def _line(failure: Failure, culprit: Culprit | None, found: Trial) -> str:
    if culprit is not None:
        return f"culprit  {culprit}"
    return f"outside  {failure.finding}" if failure.finding else str(found).splitlines()[-1]


def _heads(golden: Golden, cut: Cut) -> tuple[int, int] | None:
    if cut.group is None:
        return None
    n_heads = golden.trace[f"layers.{cut.layer}.attn.q"].shape[0]
    return n_heads, n_heads // cut.group.of


def _same(again: Trial, found: Trial, failure: Failure, cut: Cut) -> bool:
    """The same failure, and no operation blamed that was not before: that would be the cut's fault."""
    before, after = ({operation(c.finding.probe) for c in t.culprits} for t in (found, again))
    shown = failure.shown_by(again, cut.probes.get(failure.probe, failure.probe))
    return shown and after <= before


def _evidence(
    candidate: Candidate, failure: Failure, schedule: Schedule, golden: Golden, run: Run
) -> dict[str, Tensor]:
    """`expected` and `got` of the failing probe in the last step, without a batch axis."""
    kept: list[Tensor] = []

    def keep(probe: str, value: Tensor) -> Tensor:
        if probe == failure.probe:
            kept.append(value.detach().clone().cpu())
        return value

    hand_on = everywhere if failure.kind == "culprit" else nowhere
    walk(Tapped(candidate, keep), golden, DTYPES[run.dtype], hand_on, schedule, run.level)
    if len(kept) < len(schedule) or failure.probe not in golden:  # the last step did not show it
        return {}
    stop = sum(schedule)
    expected = golden.truth(failure.probe, stop - schedule[-1], stop)
    got = kept[-1]
    got = got[0] if got.dim() > expected.dim() else got
    return {"expected": expected.contiguous().to(torch.float64), "got": got.contiguous()}
