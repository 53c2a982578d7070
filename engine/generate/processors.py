"""What becomes of logits before a token is chosen, in transformers' order and meaning.

`penalised` looks at the tokens so far and holds for every choice; `narrowed` is for draws alone. Both are
float64 on the CPU, so that the same logits give the same token on every device. What cannot be chosen
is -inf. Shapes: logits [V]. transformers' own order is that of `generate`'s logits processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.generate.params import SamplingParams


@dataclass(frozen=True)
class History:
    """What a choice may depend on besides logits: the tokens so far, and when the answer ends.

    `ends` are the tokens that end it; `limit` is the most tokens that it can have, None if unknown.
    """

    prompt: Sequence[int] = ()
    answer: Sequence[int] = ()
    ends: Set[int] = frozenset()
    limit: int | None = None

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]


NO_HISTORY = History()


def processed(logits: Tensor, params: SamplingParams, history: History = NO_HISTORY) -> Tensor:
    """All of it: what a token is drawn from, or with temperature 0 the most likely is taken from."""
    logits = penalised(logits, params, history)
    return logits if params.temperature == 0 else narrowed(logits, params)


# -- with every choice -----------------------------------------------------------------------------


def penalised(logits: Tensor, params: SamplingParams, history: History) -> Tensor:
    """Logits after biases, penalties and bans."""
    logits = logits.cpu().double()
    if params.logit_bias:
        logits = logit_bias(logits, params.logit_bias)
    if params.repetition_penalty != 1:
        logits = repetition_penalty(logits, history.tokens, params.repetition_penalty)
    if params.presence_penalty or params.frequency_penalty:
        logits = count_penalties(
            logits, history.answer, params.presence_penalty, params.frequency_penalty
        )
    if params.no_repeat_ngram_size:
        logits = no_repeat_ngram(logits, history.tokens, params.no_repeat_ngram_size)
    if params.bad_words_ids:
        logits = bad_words(logits, history.tokens, params.bad_words_ids, history.ends)
    if len(history.answer) < params.min_tokens:
        logits = banned(logits, history.ends)
    if params.forced_bos_token_id is not None and len(history.tokens) == 1:
        logits = forced(logits, params.forced_bos_token_id)
    if params.forced_eos_token_id is not None and len(history.answer) + 1 == history.limit:
        logits = forced(logits, params.forced_eos_token_id)
    return logits


def logit_bias(logits: Tensor, bias: Mapping[int, float]) -> Tensor:
    """Adds to the logits of single tokens."""
    values = torch.tensor(list(bias.values()), dtype=logits.dtype)
    return logits.index_add(0, torch.tensor(list(bias)), values)


def repetition_penalty(logits: Tensor, tokens: Sequence[int], penalty: float) -> Tensor:
    """Divides the logit of every token that came, once each; multiplies it where it is negative.

    Source: Keskar et al. 2019 (CTRL), section 4.1, whose rule is for positive logits.
    """
    seen = torch.tensor(sorted(set(tokens)), dtype=torch.int64)
    those = logits[seen]
    return logits.index_copy(0, seen, torch.where(those < 0, those * penalty, those / penalty))


def count_penalties(
    logits: Tensor, answer: Sequence[int], presence: float, frequency: float
) -> Tensor:
    """Takes `presence` from every token of the answer, and `frequency` for each time that it came.

    Source: the OpenAI API reference, presence_penalty and frequency_penalty.
    """
    counts = Counter(answer)
    taken = [presence + frequency * count for count in counts.values()]
    seen = torch.tensor(list(counts), dtype=torch.int64)
    return logits.index_add(0, seen, -torch.tensor(taken, dtype=logits.dtype))


def no_repeat_ngram(logits: Tensor, tokens: Sequence[int], n: int) -> Tensor:
    """Bans what would complete `n` tokens in a row that came before (Paulus et al. 2018, section 2.5)."""
    start = len(tokens) - n + 1
    if start < 0:
        return logits
    last = list(tokens[start:])
    again = (tokens[i + n - 1] for i in range(start) if list(tokens[i : i + n - 1]) == last)
    return banned(logits, again)


def bad_words(
    logits: Tensor, tokens: Sequence[int], words: Sequence[Sequence[int]], ends: Set[int]
) -> Tensor:
    """Bans the last token of each word behind the word's others; an end token alone is no word."""
    completing = (
        last
        for *others, last in words
        if (others or last not in ends) and list(tokens[len(tokens) - len(others) :]) == others
    )
    return banned(logits, completing)


def banned(logits: Tensor, tokens: Iterable[int]) -> Tensor:
    """Lets none of these be chosen."""
    known = sorted({token for token in tokens if token < len(logits)})
    return logits.index_fill(0, torch.tensor(known, dtype=torch.int64), -torch.inf)


def forced(logits: Tensor, token: int) -> Tensor:
    """Leaves this one alone to be chosen."""
    return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(token), 0.0)


# -- with a draw -----------------------------------------------------------------------------------


def narrowed(logits: Tensor, params: SamplingParams) -> Tensor:
    """Logits after temperature and cuts, the largest 0; None leaves a cut out."""
    # Shifted first: a temperature near 0 then takes the rest to -inf, and the best never to inf.
    logits = (logits - logits.max()) / params.temperature
    if params.top_k is not None:
        logits = top_k(logits, params.top_k)
    if params.top_p is not None and params.top_p < 1:
        logits = top_p(logits, params.top_p)
    if params.min_p is not None:
        logits = min_p(logits, params.min_p)
    if params.typical_p is not None and params.typical_p < 1:
        logits = typical_p(logits, params.typical_p)
    if params.epsilon_cutoff:
        logits = epsilon_cutoff(logits, params.epsilon_cutoff)
    if params.eta_cutoff:
        logits = eta_cutoff(logits, params.eta_cutoff)
    return logits


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest, and all that equal the k-th."""
    kth = logits.topk(min(k, len(logits))).values[-1]
    return logits.masked_fill(logits < kth, -torch.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the most likely tokens up to the one whose share brings their sum to p (Holtzman 2020).

    Of equal tokens the lower ids count as the more likely.
    """
    shares, order = logits.softmax(-1).sort(descending=True, stable=True)
    cut = shares.cumsum(-1) - shares >= p  # what is more likely has p already; 0 for the best
    return logits.masked_fill(cut.scatter(-1, order, cut), -torch.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the tokens at least p times as likely as the most likely one (Nguyen 2024)."""
    return logits.masked_fill((logits - logits.max()).exp() < p, -torch.inf)


def typical_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the tokens whose surprise is nearest to the expected one, up to a mass of p.

    And all that are as near as the last of them. Source: Meister et al. 2023, section 3.
    """
    surprise = -logits.log_softmax(-1)
    distance = (surprise - _entropy(logits)).abs()
    nearest, order = distance.sort(stable=True)
    before = (logits.softmax(-1)[order].cumsum(-1) < p).sum()
    return logits.masked_fill(distance > nearest[before.clamp(max=len(logits) - 1)], -torch.inf)


def epsilon_cutoff(logits: Tensor, epsilon: float) -> Tensor:
    """Keeps the tokens of probability `epsilon` and more, and the best (Hewitt et al. 2022)."""
    below = logits.softmax(-1) < epsilon
    return logits.masked_fill(below & (logits < logits.max()), -torch.inf)


def eta_cutoff(logits: Tensor, epsilon: float) -> Tensor:
    """As `epsilon_cutoff`, with less than `epsilon` where the choice is wide open (Hewitt et al. 2022).

    Of `epsilon` as a float32, as transformers has it: a number below all of those cuts nothing.
    """
    epsilon = float(torch.tensor(epsilon, dtype=torch.float32))
    eta = (_entropy(logits).neg().exp() * epsilon**0.5).clamp(max=epsilon)
    return epsilon_cutoff(logits, float(eta))


def _entropy(logits: Tensor) -> Tensor:
    """Of the distribution, in nats."""
    shares = logits.softmax(-1)
    terms: Tensor = torch.special.xlogy(shares, shares)
    return -terms.sum()
