"""What a caller may ask of a generation, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RequestError(message)


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    `temperature` 0 takes the most likely token (the lowest id on ties). Above 0, logits are divided
    by it, then cut to the `top_k` largest, the nucleus of mass `top_p`, and the tokens at least
    `min_p` times as likely as the best; None leaves a cut out. A `seed` makes the draw repeatable.
    `stop` strings are not part of the text; `stop_token_ids` add to the model's own end tokens,
    which `ignore_eos` switches off. `logprobs` n records the chosen token's log-probability and the
    n most likely ones', of the model's own distribution, before temperature and cuts.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require(self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}")
        _require(
            0 <= self.temperature < float("inf"),
            f"temperature must be a number of at least 0, got {self.temperature}",
        )
        _require(
            self.top_k is None or self.top_k >= 1, f"top_k must be at least 1, got {self.top_k}"
        )
        _require(
            self.top_p is None or 0 < self.top_p <= 1,
            f"top_p must be above 0 and at most 1, got {self.top_p}",
        )
        _require(
            self.min_p is None or 0 <= self.min_p <= 1,
            f"min_p must be between 0 and 1, got {self.min_p}",
        )
        _require(
            self.seed is None or 0 <= self.seed < 2**63,
            f"seed must be between 0 and 2^63 - 1, got {self.seed}",
        )
        _require(
            self.logprobs is None or self.logprobs >= 0,
            f"logprobs must be at least 0, got {self.logprobs}",
        )
        _require(all(self.stop), "a stop string must not be empty")
