"""Log-probabilities: a token's own, and the most likely tokens'."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.generate.answer import TokenLogprob


def token_logprob(logits: Tensor, token: int, n: int, text_offset: int = 0) -> TokenLogprob:
    """Those of `token` and of the `n` most likely ones in logits [V]."""
    logprobs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    best = top(logprobs, min(n, len(logprobs)))
    return TokenLogprob(token, float(logprobs[token]), best, text_offset)


def top(logprobs: Tensor, n: int) -> tuple[tuple[int, float], ...]:
    """The n most likely tokens in order; of equal ones the lower ids come first.

    Those that cannot be chosen are none of them.
    """
    if n == 0:
        return ()
    # topk alone gives any of those that tie at its end; sorting the whole vocabulary is slow.
    least = logprobs.topk(n).values[-1]
    ids = ((logprobs >= least) & (logprobs > -torch.inf)).nonzero()[:, 0]
    values, order = logprobs[ids].sort(descending=True, stable=True)
    return tuple(zip(ids[order][:n].tolist(), values[:n].tolist(), strict=True))
