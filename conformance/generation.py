"""A candidate's own loop, from a prompt to an answer: what a trial, which feeds the tokens, cannot see.

Levels L0 and L1: the candidate encodes, generates greedily and answers in text by itself, and is compared
with the golden's prompt, its teacher-forced tokens and their text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from conformance.candidate import Candidate, Level, UnavailableError, said
from conformance.envelope import Envelope
from conformance.golden import Golden
from conformance.judgement import disagreements
from conformance.lockstep import Choice
from conformance.text import TextFinding
from engine.errors import ModelFileError

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a candidate said of a golden's prompt, and what is wrong with it."""

    findings: tuple[TextFinding, ...]
    text: str | None
    follows: bool = False  # it differs, and a divergence that is known already explains that
    heard: bool = True  # False where the candidate answers nothing by itself


def answer(
    candidate: Candidate,
    golden: Golden,
    envelope: Envelope,
    level: Level,
    *,
    known_to_diverge: bool = False,
) -> Answer:
    """Judges every kind of answer that the candidate has, text alone at L0.

    `envelope` is that of a free run; `level` is the deepest that may be looked at. A difference is
    excused where the answer leaves the reference's at or behind a tie, or where a trial has named
    culprits already: what follows from them is no news. A candidate that raises has answered so.
    """
    count = golden.schedule[0]
    prompt, expected = golden.ids[:count].tolist(), golden.ids[count:].tolist()
    findings = []
    follows, excused = False, known_to_diverge
    with_ids = level > Level.L0
    chosen = _ask(candidate.greedy, prompt, len(expected)) if with_ids else None
    if chosen == expected:  # and again: an answer must not depend on the one before
        chosen = _ask(candidate.greedy, prompt, len(expected))
    if chosen is None:
        excused = excused or _passes_a_tie(golden, envelope)
    elif chosen != expected:
        tied = isinstance(chosen, list) and _leaves_at_a_tie(chosen, golden, envelope)
        follows = known_to_diverge and not tied
        excused = excused or tied
        if not excused:
            findings.append(TextFinding("generate", f"{count} ids", expected, chosen))
    if "text" not in golden.manifest:
        return Answer(tuple(findings), None, follows, heard=chosen is not None)
    text, continuation = str(golden.manifest["text"]), golden.manifest["continuation"]
    ids = _ask(candidate.encode, text) if with_ids else None
    if ids is not None and ids != prompt:
        findings.append(TextFinding("tokenizer.encode", text, prompt, ids))
        excused = True  # what it says of another prompt than the reference's follows from that
    words = _ask(candidate.text, text, len(expected))
    if words is not None and words != continuation:
        follows = follows or known_to_diverge
        if not excused:
            findings.append(TextFinding("generate", text, continuation, words))
    heard = any(said is not None for said in (chosen, ids, words))
    return Answer(tuple(findings), words, follows, heard)


def _ask(question: Callable[..., T | None], *arguments: Any) -> T | str | None:
    """What the candidate answers, or the error that it raised instead, in words."""
    try:
        return question(*arguments)
    except (ModelFileError, UnavailableError):  # a tokenizer that it refuses, a server that is away
        raise
    except Exception as error:
        return said(error)


def _leaves_at_a_tie(chosen: Sequence[int], golden: Golden, envelope: Envelope) -> bool:
    """Whether the first token that differs does so within the envelope; an early end does not."""
    first = golden.schedule[0]
    expected = golden.ids[first:].tolist()
    for n, (ours, theirs) in enumerate(zip(chosen, expected, strict=False)):
        if ours != theirs:
            choice = Choice(first - 1 + n, ours, theirs)
            (found,) = disagreements([choice], golden, envelope)
            return found.is_tie or _passes_tied_experts(golden, envelope, first + n)
    return False


def _passes_a_tie(golden: Golden, envelope: Envelope) -> bool:
    """Whether the reference itself chose within the envelope: its text may then go on otherwise."""
    margins = golden.manifest["margins"][golden.schedule[0] - 1 : -1]
    tied = bool(min(margins) <= 2 * envelope.allowance("logits"))
    return tied or _passes_tied_experts(golden, envelope, len(golden.ids))


def _passes_tied_experts(golden: Golden, envelope: Envelope, tokens: int) -> bool:
    """Whether one of the first `tokens` went to experts that were chosen within the envelope.

    A loop by itself has nobody to hand it the reference's experts: its answer may then go on otherwise.
    """
    return any(tie < tokens for tie in golden.expert_ties(envelope, shows=lambda probe: False))
