"""Log-probabilities of the model's own distribution, before temperature and cuts."""

from __future__ import annotations

from torch import Tensor

from engine.generate.answer import TokenLogprob


def token_logprob(logits: Tensor, token: int, n: int | None) -> TokenLogprob | None:
    """Those of `token` and of the `n` most likely ones in logits [V]; nothing where n is None."""
    if n is None:
        return None
    logprobs = logits.float().log_softmax(-1)
    return TokenLogprob(token, float(logprobs[token]), top(logprobs, min(n, len(logprobs))))


def top(logprobs: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    """The n most likely tokens in order; of equal ones the lower ids come first."""
    if n == 0:
        return ()
    # topk alone gives any of those that tie at its end; sorting the whole vocabulary is slow.
    ids = (logprobs >= logprobs.topk(n).values[-1]).nonzero()[:, 0]
    values, order = logprobs[ids].sort(descending=True, stable=True)
    return tuple(zip(ids[order][:n].tolist(), values[:n].tolist(), strict=True))
