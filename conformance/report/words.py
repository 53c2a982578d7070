"""What was found, in sentences: the same for the page and for a failing test's message."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.candidate import layer_of, operation
from conformance.judgement import Disagreement, Finding
from conformance.report.report import followers
from conformance.verdict import Culprit, Trial

_KINDS = {
    "largest": "the largest error of its elements",
    "rms": "the root mean square of its error",
    "along": "its error along the truth (a wrong factor shows so)",
}


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def name_of(probe: str) -> str:
    """`Layer 0, attn.q_rope`; a probe outside the layers is called by its name."""
    layer = layer_of(probe)
    return probe if layer is None else f"Layer {layer}, {operation(probe)}"


def where(finding: Finding) -> str:
    """The token, the head and the step that were worst."""
    parts = [f"token position {finding.position}"] if finding.position is not None else []
    parts += [f"head {finding.head}"] if finding.head is not None else []
    return ", ".join([*parts, f"step {finding.step}"])


def seen(finding: Finding) -> str:
    """What was seen, and where it was worst."""
    if finding.problem:
        return f"at step {finding.step} it {finding.problem}"
    return f"worst at {where(finding)}: {off_by(finding)}"


def off_by(finding: Finding) -> str:
    """How far it is off."""
    if finding.error is None or finding.allowance is None:
        return "it differs"
    return (
        f"{_KINDS.get(finding.kind or '', 'its error')} is {finding.error:.2e} of the row's scale, "
        f"{finding.allowance:.2e} is allowed ({share(finding.error / finding.allowance)} times that)"
    )


def share(value: float) -> str:
    """A share of an allowance, in at most five characters."""
    return f"{value:.2f}" if value < 100 else f"{value:.0e}".replace("e+0", "e")


def fed(trial: Trial, trials: Sequence[Trial]) -> str:
    """The candidate, and how its prompt was fed where that tells its runs on a golden apart."""
    same = [t for t in trials if (t.case, t.candidate) == (trial.case, trial.candidate)]
    if len(same) == 1:
        return trial.candidate
    first, *rest = trial.schedule
    chunked = bool(rest) and (rest[0] > 1 or first == 1)
    return f"{trial.candidate}, {f'chunks of {first}' if chunked else 'whole prompt'}"


def proof(culprit: Culprit) -> str:
    if culprit.graft_confirms is None:
        return "no graft could confirm it: the golden holds nothing that follows"
    return (
        "the graft confirms it: with the reference's value put in there, what follows comes right"
        if culprit.graft_confirms
        else "the graft does not confirm it: with the reference's value put in there, what follows "
        "is still wrong"
    )


def following(trial: Trial, culprit: Culprit) -> str | None:
    """What is outside because of it."""
    count = followers(trial, culprit.finding.probe)
    if not count:
        return None
    return "1 more probe follows from it" if count == 1 else f"{count} more probes follow from it"


def runs(sightings: Sequence[tuple[Trial, Culprit]]) -> str:
    """The case in which an operation was first seen to be guilty, and the candidates there."""
    case = sightings[0][0].case
    return (
        f"{case}: {', '.join(dict.fromkeys(t.candidate for t, _ in sightings if t.case == case))}"
    )


def elsewhere(sightings: Sequence[tuple[Trial, Culprit]]) -> str | None:
    """The other layers of that case where the operation is guilty, and how many cases more."""
    case = sightings[0][0].case
    layers = dict.fromkeys(layer_of(c.finding.probe) for t, c in sightings if t.case == case)
    others = [str(layer) for layer in layers][1:]
    cases = len({t.case for t, _ in sightings}) - 1
    also = [f"layer{'s' * (len(others) > 1)} {', '.join(others)}"] if others else []
    also += [f"{cases} more case{'s' * (cases > 1)}"] if cases else []
    return f"also in {' and in '.join(also)}" if also else None


def source(finding: Finding) -> str | None:
    """What a finding in the free run follows from."""
    if not finding.propagated_from:
        return None
    nearest, *others = finding.propagated_from
    return f"propagated from {nearest}" + (f" and {len(others)} before it" if others else "")


def elements(finding: Finding) -> Sequence[str]:
    """The elements furthest off, a line each."""
    return [f"element {e.index}: expected {e.expected:.6g}, got {e.got:.6g}" for e in finding.worst]


def message(trial: Trial, culprit: Culprit) -> str:
    """A failing test's message: the culprit in a line, and below it what a reader asks next."""
    details = [following(trial, culprit), "; ".join(elements(culprit.finding))]
    return "\n    ".join([str(culprit), *(line for line in details if line)])


def choice(d: Disagreement) -> str:
    return f"{d}, by a margin of {d.margin:.1e} where {d.allowance:.1e} is allowed"
