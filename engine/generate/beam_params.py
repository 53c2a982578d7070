"""What a caller may ask of a beam search, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from engine.generate.checks import integer, number, require, shown

MOST_BEAMS = 256
_STRONGEST = 10  # a penalty: what lengths are raised to must remain a number


@dataclass(frozen=True)
class BeamSearch:
    """Answers that are the most likely as wholes, of those that `beams` beams find; RequestError for nonsense.

    At each token the `beams` most likely beginnings of answers go on. An answer's score is the sum of
    its tokens' log-probabilities over its length to the power of `length_penalty`: 0 favours short
    answers, 1 takes the mean, and more favours long ones. Tokens of the prompt do not count, the end
    token does.

    `early_stopping`: with True the search is over once `beams` answers have ended; with False also where
    the best beginning, as long as it is, scores no better than the worst of them; with "never" that is
    asked of it at the length at which it could score best. The meaning is transformers'.
    """

    beams: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        beams = integer("beams", self.beams, least=1)
        require(self.beams > 1, "one beam is no search: leave beams out for the greedy answer")
        require(
            self.beams <= MOST_BEAMS,
            f"a search can have at most {MOST_BEAMS} beams, got {shown(self.beams)}",
        )
        object.__setattr__(self, "beams", beams)
        penalty = number(
            "length_penalty",
            self.length_penalty,
            f"from -{_STRONGEST} to {_STRONGEST}",
            lambda penalty: -_STRONGEST <= penalty <= _STRONGEST,
        )
        object.__setattr__(self, "length_penalty", penalty)
        early: Any = self.early_stopping
        require(
            isinstance(early, bool) or (isinstance(early, str) and early == "never"),
            f'early_stopping must be true, false or "never", got {shown(early)}',
        )

    def score(self, logprobs: float, length: int) -> float:
        """Of an answer of that many tokens, whose log-probabilities add up to `logprobs`."""
        return float(logprobs / length**self.length_penalty)
