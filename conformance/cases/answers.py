"""Real models whose answers to long prompts are kept."""

from __future__ import annotations

from dataclasses import dataclass

#: Tokens of the prompts. The two long ones are longer than windows, and take several chunks.
PROMPTS = (1, 600, 3000)
#: Tokens of an answer, and how many of the best tokens are kept at each position.
ANSWER = 200
BEST = 8


@dataclass(frozen=True)
class AnswersCase:
    """A golden of the model that `lockstep fetch` knows as `model` (see `conformance.answers`)."""

    name: str
    model: str


ANSWERS_CASES: tuple[AnswersCase, ...] = tuple(
    AnswersCase(f"answers-{model}", model) for model in ("smollm2-135m", "gemma3-270m")
)
