"""What a caller may ask of a generation, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.generate.beam_params import BeamSearch
from engine.generate.checks import boolean, integer, items, number, require, shown
from engine.generate.structured import Structure

MOST_ANSWERS = 1024  # to one prompt


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop; raises RequestError for what makes no sense.

    The meaning of everything that changes logits, and the order, is transformers'; the presence and
    frequency penalties, which it lacks, are OpenAI's. See `engine.generate.processors`.

    Choice: `temperature` 0 takes the most likely token (the lowest id on ties). Above 0 logits are
    divided by it, and then cut: to the `top_k` largest (and all that equal the last of them), the
    nucleus of mass `top_p`, tokens at least `min_p` times as likely as the best, the `typical_p` most
    typical mass, and what is not below `epsilon_cutoff` and `eta_cutoff`. None leaves a cut out, and so
    do 0 and -1 for `top_k`. A `seed` makes the draw repeatable.

    Also without a draw: `logit_bias` adds to the logits of single tokens. `repetition_penalty` counts
    tokens of prompt and answer, `presence_penalty` and `frequency_penalty` those of the answer.
    `no_repeat_ngram_size` n lets no n tokens come twice, `bad_words_ids` lists what may not come at all.
    `forced_bos_token_id` follows a prompt of one token, `forced_eos_token_id` is the last token of an
    answer that nothing else ends.

    End: after `max_tokens`, at an end token of the model, which `ignore_eos` switches off, at one of
    `stop_token_ids`, or at a `stop` string, which is not part of the text unless
    `include_stop_str_in_output` asks for it. Among the first `min_tokens` none of these tokens
    is chosen, and a string that they complete does not end the answer.

    `logprobs` n records the chosen token's log-probability and the n most likely ones'. Under
    `logprobs_mode` "raw" that is the model's own distribution; under "processed" the one that the token
    was chosen from. `prompt_logprobs` n does so for the prompt's tokens, which are always raw; who asks
    for them need not have an answer, and may set `max_tokens` to 0.
    `n` answers are given to one prompt; the one of index i has the seed of `branch(i)`. With `best_of`
    as many are made, and those n are given whose tokens are the most likely on average. With `beams`
    the n best are given that a beam search finds, in which log-probabilities take the place of logits.

    `structured` is what an answer has to look like (see `engine.generate.structured`): a token that no
    such answer goes on with is not chosen, and the answer ends once nothing can follow. One that
    `max_tokens` or a `stop` string ends before is the beginning of one.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    logprobs_mode: str = "raw"
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None
    beams: BeamSearch | None = None
    structured: Structure | None = None

    def __post_init__(self) -> None:
        self._check_choice()
        self._check_penalties()
        self._check_end()
        self._check_answers()
        if self.beams is not None:
            self._check_beams(self.beams)

    def _check_choice(self) -> None:
        self._number("temperature", "0 or more", lambda t: 0 <= t < math.inf)
        if self.top_k is not None:
            self._integer("top_k", least=-1)
            self._set("top_k", self.top_k if self.top_k > 0 else None)
        for name in ("top_p", "typical_p"):
            if getattr(self, name) is not None:
                self._number(name, "above 0 and at most 1", lambda p: 0 < p <= 1)
        if self.min_p is not None:
            self._number("min_p", "between 0 and 1", lambda p: 0 <= p <= 1)
        for name in ("epsilon_cutoff", "eta_cutoff"):
            if getattr(self, name) is not None:
                self._number(name, "of at least 0 and below 1", lambda p: 0 <= p < 1)
        if self.seed is not None:
            self._integer("seed", least=0)
            require(self.seed < 2**63, f"seed must be below 2^63, got {shown(self.seed)}")

    def _check_penalties(self) -> None:
        bias = self.logit_bias
        require(isinstance(bias, Mapping), f"logit_bias must map ids to numbers, got {shown(bias)}")
        added = {
            integer("a token id of logit_bias", token, least=0): number(
                "a value of logit_bias", value, "or -inf", lambda b: b < math.inf
            )
            for token, value in bias.items()
        }
        self._set("logit_bias", added)
        self._number("repetition_penalty", "above 0", lambda p: 0 < p < math.inf)
        for name in ("presence_penalty", "frequency_penalty"):
            self._number(name, "that is finite", math.isfinite)
        self._integer("no_repeat_ngram_size", least=0)
        words = tuple(
            tuple(
                integer("a token id of a bad word", token, 0) for token in items("a bad word", word)
            )
            for word in items("bad_words_ids", self.bad_words_ids)
        )
        require(all(words), "a bad word must have at least one token id")
        self._set("bad_words_ids", words)
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) is not None:
                self._integer(name, least=0)

    def _check_end(self) -> None:
        nothing = self.prompt_logprobs is not None and self.beams is None
        self._integer("max_tokens", least=0 if nothing else 1)
        self._integer("min_tokens", least=0)
        least, most = shown(self.min_tokens), shown(self.max_tokens)
        require(
            self.min_tokens <= self.max_tokens,
            f"min_tokens must be at most max_tokens, got {least} and {most}",
        )
        stop = (self.stop,) if isinstance(self.stop, str) else items("stop", self.stop)
        for text in stop:
            require(isinstance(text, str), f"a stop string must be a string, got {shown(text)}")
            require(text != "", "a stop string must not be empty")
        stop_token_ids = tuple(
            integer("a stop token id", token, least=0)
            for token in items("stop_token_ids", self.stop_token_ids)
        )
        self._set("stop", stop)
        self._set("stop_token_ids", stop_token_ids)
        boolean("ignore_eos", self.ignore_eos)
        boolean("include_stop_str_in_output", self.include_stop_str_in_output)

    def _check_answers(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._integer(name, least=0)
        mode: Any = self.logprobs_mode
        require(
            isinstance(mode, str) and mode in ("raw", "processed"),
            f"logprobs_mode must be raw or processed, got {shown(mode)}",
        )
        self._integer("n", least=1)
        if self.best_of is not None:
            self._integer("best_of", least=1)
            made, given = shown(self.best_of), shown(self.n)
            require(self.best_of >= self.n, f"best_of must be at least n, got {made} and {given}")
        require(
            self.structured is None or isinstance(self.structured, Structure),
            "structured must be a JsonSchema, JsonObject, Regex, Choice or Grammar, got "
            f"{shown(self.structured)}",
        )
        require(
            self.structured is None or self.forced_bos_token_id is None,
            "a structured answer cannot begin with a forced token",
        )
        most = f"at most {MOST_ANSWERS} answers can be had to one prompt, got {shown(self.answers)}"
        require(self.answers <= MOST_ANSWERS, most)

    def _check_beams(self, beams: BeamSearch) -> None:
        require(isinstance(beams, BeamSearch), f"beams must be a BeamSearch, got {shown(beams)}")
        require(
            self.n <= beams.beams,
            f"a beam search gives at most one answer a beam, and {self.n} were asked of {beams.beams}",
        )
        require(self.temperature == 0, "a beam search draws nothing: temperature must be 0")
        require(self.best_of is None, "a beam search ranks its answers itself: leave best_of out")
        require(
            not self.stop,
            "stop strings cannot end the answers of a beam search; use stop_token_ids",
        )
        require(self.structured is None, "the answers of a beam search cannot be structured")

    def _integer(self, name: str, least: int) -> None:
        self._set(name, integer(name, getattr(self, name), least))

    def _number(self, name: str, range_: str, fits: Callable[[float], bool]) -> None:
        self._set(name, number(name, getattr(self, name), range_, fits))

    def _set(self, name: str, value: Any) -> None:
        """What was given, in the form that is kept."""
        object.__setattr__(self, name, value)

    @property
    def answers(self) -> int:
        """How many are made to one prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def penalises(self) -> bool:
        """Whether anything is done to logits that holds without a draw, too."""
        return bool(
            self.logit_bias
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram_size
            or self.bad_words_ids
            or self.min_tokens
            or self.forced_bos_token_id is not None
            or self.forced_eos_token_id is not None
        )

    @property
    def named_ids(self) -> frozenset[int]:
        """Every token id whose logit is changed by name, which a model must have; other ends never come."""
        forced = (self.forced_bos_token_id, self.forced_eos_token_id)
        words = (token for word in self.bad_words_ids for token in word)
        named = (*self.logit_bias, *words, *forced)
        return frozenset(token for token in named if token is not None)

    def branch(self, index: int) -> SamplingParams:
        """What the answer of that index would be asked with alone: its seed is seed + index, modulo 2^63."""
        seed = None if self.seed is None else (self.seed + index) % 2**63
        return replace(self, n=1, best_of=None if self.best_of is None else 1, seed=seed)
