"""Beam searches whose results are kept: tiny models under many settings, a real one on texts.

What a search is asked is written in the names of `SamplingParams` and `BeamSearch`. Of a tiny model the
oracle picks prompts, and end tokens that the model is likely to say, by a rule (see
`conformance.oracle.beams`): `ends` says how many. A search must meet the circumstance that `meets`
names, and its answers must be others with the changes of `unlike`: so it is known to bite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.cases import deepseek_v3, gemma2, llama
from conformance.cases.case import Case

Asked = Mapping[str, Any]

#: What says how a search is picked, and is not asked of it.
RULES = ("ends", "meets", "unlike")
_PATIENT: Asked = {"early_stopping": False}


@dataclass(frozen=True)
class BeamsCase:
    """A golden of searches by a tiny model, or by the one that `lockstep fetch` knows as `model`.

    Each search is asked of a random prompt of the tiny model, or of each of the `texts`.
    """

    name: str
    model: Case | str
    searches: tuple[Asked, ...]
    texts: tuple[str, ...] = ()


def _asked(beams: int, n: int, max_tokens: int, ends: int, **others: Any) -> Asked:
    return {"beams": beams, "n": n, "max_tokens": max_tokens, "ends": ends, **others}


SEARCHES: tuple[Asked, ...] = (
    # Without end tokens: all answers are as long as they may be.
    _asked(2, 1, 1, 0),
    _asked(3, 3, 9, 0),
    _asked(5, 2, 14, 0, length_penalty=2.0, early_stopping="never"),
    # Answers of several lengths, ranked by them.
    _asked(4, 3, 12, 1),
    _asked(4, 4, 12, 1, length_penalty=0.0),
    _asked(4, 4, 12, 1, length_penalty=2.0),
    _asked(4, 2, 12, 1, length_penalty=-1.0),
    _asked(3, 2, 16, 2, length_penalty=0.6),
    _asked(5, 5, 10, 3),
    _asked(2, 2, 20, 1, length_penalty=1.0),
    # When the search is over.
    _asked(4, 4, 16, 1, early_stopping=True),
    _asked(3, 3, 16, 3, early_stopping=True, length_penalty=0.0),
    _asked(3, 1, 16, 2, early_stopping=True, length_penalty=2.0),
    _asked(4, 4, 16, 2, early_stopping=False, length_penalty=0.0),
    _asked(2, 2, 16, 3, early_stopping=False, length_penalty=0.6),
    _asked(3, 3, 16, 2, early_stopping=False, length_penalty=2.0),
    _asked(2, 2, 16, 2, early_stopping="never"),
    _asked(3, 3, 16, 3, early_stopping="never", length_penalty=0.0),
    _asked(3, 2, 16, 3, early_stopping="never", length_penalty=0.6),
    _asked(2, 2, 12, 3, early_stopping="never", length_penalty=-1.0),
    # With processors of logits, which are given log-probabilities.
    _asked(4, 3, 12, 1, min_tokens=6),
    _asked(3, 2, 12, 2, min_tokens=3, early_stopping=True),
    _asked(4, 2, 12, 1, repetition_penalty=1.3),
    _asked(3, 3, 14, 1, repetition_penalty=0.8, length_penalty=0.6),
    _asked(4, 3, 12, 1, no_repeat_ngram_size=2),
    _asked(3, 3, 14, 0, no_repeat_ngram_size=2, repetition_penalty=1.2),
    # That are known to bite.
    _asked(2, 2, 12, 6, early_stopping="never", meets="more ends than beams"),
    _asked(2, 2, 12, 3, early_stopping="never", length_penalty=2.0, unlike=_PATIENT),
    _asked(2, 2, 10, 3, early_stopping=True, length_penalty=2.0, unlike=_PATIENT),
)

#: As the public case asks: four beams, three answers.
_REAL_SEARCHES: tuple[Asked, ...] = (
    _asked(4, 3, 20, 0),
    _asked(4, 3, 16, 2, length_penalty=0.6, no_repeat_ngram_size=3),
)
_TEXTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
)


def _tiny(cases: tuple[Case, ...], name: str) -> BeamsCase:
    (case,) = (case for case in cases if case.name == name)
    return BeamsCase(f"beams-{case.family}", case, SEARCHES)


BEAMS_CASES: tuple[BeamsCase, ...] = (
    _tiny(llama.CASES, "llama-gqa"),
    _tiny(gemma2.CASES, "gemma2-untied"),  # whose windows are shorter than its prompts
    _tiny(deepseek_v3.CASES, "deepseek-v3"),
    BeamsCase("beams-smollm2-135m", "smollm2-135m", _REAL_SEARCHES, _TEXTS),
)
