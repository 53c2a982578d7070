"""What a generation gives: pieces while it runs, a completion when it is done, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.generate.stop import StopMatcher
from engine.tokenizer.stream import TokenStream


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability, and the most likely tokens' in order.

    `text_offset` is the number of characters of the answer (or of the prompt) that were certain before
    the token: where its own text begins, or the character that it is a part of.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    text_offset: int = 0


@dataclass(frozen=True)
class Piece:
    """One token's share of a streamed completion: the text it set free, which may be empty.

    `finish_reason` is None until the last piece: "stop" (an end token or stop string) or "length".
    `index` says to which of n answers it belongs.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0


@dataclass(frozen=True)
class Completion:
    """A finished generation. `token_ids` holds the end token where there was one; `text` does not.

    `usage` is that of the whole request: the prompt's tokens once, and those of all n answers, of which
    this is the one of `index`. `prompt_logprobs` begin with None, as nothing foretells the first token.
    `score` is what several answers were ranked by, where they were.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    logprobs: list[TokenLogprob] | None = None
    usage: dict[str, int] = field(default_factory=dict)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    index: int = 0
    score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `lockstep generate --json`."""
        return asdict(self)


class AnswerText:
    """The text of an answer as its tokens come: never half a character, never past a stop string.

    `stopped` says whether a stop string was found; no text follows it. Without a detokenizer there
    is no text at all. `decoded` counts the characters that the tokens so far made certain, whether they
    are out or held back as the start of a stop string.
    """

    def __init__(
        self,
        detokenizer: TokenStream | None,
        stops: Sequence[str],
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._unstoppable = min_tokens  # tokens that no stop string ends
        self._matcher = StopMatcher(stops, include_stop)
        self.decoded = 0

    @property
    def stopped(self) -> bool:
        return self._matcher.matched

    def push(self, token: int) -> str:
        """The text that is certain now."""
        text = "" if self._detokenizer is None else self._detokenizer.push(token)
        self.decoded += len(text)
        self._unstoppable -= 1
        return self._matcher.push(text, self._armed)

    def finish(self) -> str:
        """The rest: what was held back as the start of a character or of a stop string."""
        text = "" if self._detokenizer is None else self._detokenizer.flush()
        return self._matcher.push(text, self._armed) + self._matcher.flush()

    @property
    def _armed(self) -> bool:
        return self._unstoppable < 0
