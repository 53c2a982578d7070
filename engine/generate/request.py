"""One request: its tokens, how the next one is chosen, and what is said of it.

Whatever is a request's own is here, so that its tokens depend on nothing else in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from torch import Tensor

from engine.generate.answer import AnswerText, Completion, Piece, TokenLogprob
from engine.generate.logprobs import token_logprob
from engine.generate.params import SamplingParams
from engine.generate.processors import NO_HISTORY, History
from engine.generate.sample import Guide, Sampler


class Request:
    """A prompt on its way to an answer of at most `limit` tokens, which one of `ends` ends.

    `guide` says what the answer has to look like; where nothing can follow, it ends too.

    `tokens` are the prompt's and the answer's so far, `pieces` what was said of the answer's. `branches`
    are the other answers to the same prompt, where several are made, of which `n` are given. `read_as`
    is the length that ropes which follow it are to take, see Room; `arrival` is a scheduler's number.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        answer: AnswerText,
        *,
        limit: int,
        ends: Set[int],
        index: int = 0,
        guide: Guide | None = None,
    ) -> None:
        self.prompt, self.n, self.params = list(prompt), params.n, params.branch(index)
        self.limit, self.ends, self.index = limit, ends, index
        self.tokens = list(prompt)
        self.read_as = len(prompt)
        self.arrival = 0
        self.cached_tokens: int | None = None  # of the prompt, when it was first let in
        self.branches: Sequence[Request] = ()
        self.pieces: list[Piece] = []
        self.prompt_logprobs: list[TokenLogprob | None] = [None]
        self.prompt_offsets: Sequence[int] = [0] * len(prompt)  # of a prompt without a text
        self._answer = answer
        self._guide = guide
        self._sampler = Sampler(self.params, guide)
        self._logprobs = 0.0  # of the answer's tokens, added up

    @property
    def answers(self) -> tuple[Request, ...]:
        """All that are made to this prompt, by their index; a branch has none but its own."""
        return (self, *self.branches)

    @property
    def longest(self) -> int:
        """How many tokens a cache must be able to hold: all but the answer's last, which is never read."""
        return len(self.prompt) + max(0, self.limit - 1)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logits of the prompt's tokens are still to be seen; branches have those of the first."""
        asked = self.index == 0 and self.params.prompt_logprobs is not None
        return asked and len(self.prompt_logprobs) < len(self.prompt)

    @property
    def done(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].finish_reason is not None

    def choose(self, logits: Tensor) -> Piece:
        """The next token, after logits [V] of the last one; LockstepError where they are not finite.

        Of an answer that may have none, its end.
        """
        if self.limit == 0:
            self.pieces.append(Piece("", (), "length", (), self.index))
            return self.pieces[-1]
        scores = self._sampler.scores(logits, self._history())
        token = self._sampler.choose(scores)
        entries = self._entries(logits, scores.values, token)
        return self._take(token, entries)

    def dictate(
        self, tokens: Sequence[int], entries: Sequence[TokenLogprob], logprobs: float
    ) -> None:
        """Takes the whole answer of a beam search: its tokens, what is recorded of them, and their sum."""
        for i, token in enumerate(tokens):
            offset = self._answer.decoded
            self._take(token, tuple(replace(e, text_offset=offset) for e in entries[i : i + 1]))
        self._logprobs = logprobs

    def _take(self, token: int, entries: tuple[TokenLogprob, ...]) -> Piece:
        self.tokens.append(token)
        if self._guide is not None and token not in self.ends:
            self._guide.push(token)
        piece = self._piece(token, entries)
        self.pieces.append(piece)
        return piece

    def _history(self) -> History:
        if not self.params.penalises:
            return NO_HISTORY  # nobody looks at it, and the answer is not copied
        return History(self.prompt, self.tokens[len(self.prompt) :], self.ends, self.limit)

    def _entries(self, logits: Tensor, scores: Tensor, token: int) -> tuple[TokenLogprob, ...]:
        """What is recorded of a token that was chosen from `scores`, which became of the logits."""
        params = self.params
        if params.best_of is not None:
            self._logprobs += token_logprob(logits, token, 0).logprob
        if params.logprobs is None:
            return ()
        asked = logits if params.logprobs_mode == "raw" else scores
        return (token_logprob(asked, token, params.logprobs, self._answer.decoded),)

    def _piece(self, token: int, entries: tuple[TokenLogprob, ...]) -> Piece:
        answer = self._answer
        ended, n = token in self.ends, len(self.pieces) + 1
        text = "" if ended else answer.push(token)
        complete = self._guide is not None and self._guide.done and n >= self.params.min_tokens
        final = ended or complete or answer.stopped or n == self.limit
        if final:
            text += answer.finish()  # may complete a stop string
        reason = "stop" if ended or complete or answer.stopped else "length"
        return Piece(text, (token,), reason if final else None, entries, self.index)

    @property
    def score(self) -> float:
        """The mean log-probability of the answer's tokens, where it is counted; of a beam, its score."""
        beams, length = self.params.beams, len(self.pieces)
        return self._logprobs / length if beams is None else beams.score(self._logprobs, length)

    def see(self, first: int, logits: Tensor) -> None:
        """Takes from logits [T, V] of the tokens from position `first` on what they foretold."""
        for position, row in enumerate(logits, first + 1):
            # A prompt that is computed once more foretells nothing new.
            if position == len(self.prompt_logprobs) < len(self.prompt):
                token = self.prompt[position]
                n, offset = self.params.prompt_logprobs or 0, self.prompt_offsets[position]
                self.prompt_logprobs.append(token_logprob(row, token, n, offset))


def completions(request: Request) -> list[Completion]:
    """The answers to a request whose branches are all done: in the order of their indices, or the best.

    Those come first that are the most likely; all that were made count as used.
    """
    answers = list(request.answers)
    n_prompt = len(request.prompt)
    n_completed = sum(len(piece.token_ids) for answer in answers for piece in answer.pieces)
    ranked = request.params.best_of is not None or request.params.beams is not None
    if ranked:
        answers.sort(key=lambda answer: answer.score, reverse=True)
    return [
        Completion(
            text="".join(piece.text for piece in answer.pieces),
            token_ids=[t for piece in answer.pieces for t in piece.token_ids],
            prompt_token_ids=list(answer.prompt),
            finish_reason=answer.pieces[-1].finish_reason or "length",
            logprobs=None
            if answer.params.logprobs is None
            else [entry for piece in answer.pieces for entry in piece.logprobs],
            usage={
                "prompt_tokens": n_prompt,
                "completion_tokens": n_completed,
                "total_tokens": n_prompt + n_completed,
            },
            prompt_logprobs=None
            if request.params.prompt_logprobs is None
            else list(request.prompt_logprobs),
            index=index,
            score=answer.score if ranked else None,
        )
        for index, answer in enumerate(answers[: request.n])
    ]
