"""How a token is chosen: the candidates after each step of sampling, and what each layer would say.

Every step is done by the engine's own processors: they are asked for the first step alone, then for the
first two, and so on, so that what each of them changes can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.decoder import Decoder
from engine.generate.params import SamplingParams
from engine.generate.processors import History, processed
from engine.inspect.numbers import all_short, short

CANDIDATES = 10

#: A step of sampling: the fields of SamplingParams that ask for it, its name, and what it does.
Step = tuple[tuple[str, ...], str, str]

#: In the order in which processors take them. The second half is for draws alone.
WITH_EVERY_CHOICE: tuple[Step, ...] = (
    (("logit_bias",), "bias", "adds to the logits of single tokens"),
    (("repetition_penalty",), "repetition penalty", "weakens every token that came before"),
    (
        ("presence_penalty", "frequency_penalty"),
        "presence and frequency",
        "weakens tokens of the answer, once and each time that they came",
    ),
    (("no_repeat_ngram_size",), "no repeats", "bans what would complete a run that came before"),
    (("bad_words_ids",), "bad words", "bans the last token of each word that may not come"),
    (("min_tokens",), "minimum length", "bans end tokens until the answer is long enough"),
    (("forced_bos_token_id",), "forced first token", "leaves one token alone"),
    (("forced_eos_token_id",), "forced last token", "leaves one token alone"),
)
WITH_A_DRAW: tuple[Step, ...] = (
    (("temperature",), "temperature", "divides logits: below 1 the best gain, above 1 the rest"),
    (("top_k",), "top-k", "keeps the k most likely"),
    (("top_p",), "top-p", "keeps the most likely up to a mass of p"),
    (("min_p",), "min-p", "keeps what is at least p times as likely as the best"),
    (("typical_p",), "typical", "keeps what is about as surprising as expected, up to a mass"),
    (("epsilon_cutoff",), "epsilon cut", "keeps what has at least this probability"),
    (("eta_cutoff",), "eta cut", "as epsilon, and lower where the choice is wide open"),
)
_PLAIN = SamplingParams()


def asked(params: SamplingParams) -> Iterator[tuple[str, str, str, SamplingParams]]:
    """Each step that the parameters ask for: name, value, what it does, and all up to it as parameters."""
    so_far: dict[str, Any] = {"max_tokens": params.max_tokens}
    for names, title, explained in WITH_EVERY_CHOICE + WITH_A_DRAW * (params.temperature > 0):
        changed = [name for name in names if getattr(params, name) != getattr(_PLAIN, name)]
        if changed:
            so_far |= {name: getattr(params, name) for name in changed}
            value = ", ".join(f"{getattr(params, name)}" for name in changed)
            yield title, value, explained, SamplingParams(**so_far)


def candidates(logits: Tensor, params: SamplingParams, history: History) -> dict[str, Any]:
    """The likeliest tokens of logits [V] before anything is done to them, and after each step."""
    raw = logits.detach().double().cpu()
    stages = [("model", "", "the softmax of the logits", raw)]
    for title, value, explained, so_far in asked(params):
        stages.append((title, value, explained, processed(raw, so_far, history)))
    shares = [values.softmax(-1) for *_, values in stages]
    ids = _likeliest(shares)
    return {
        "ids": ids,
        "logits": all_short(stages[0][3][ids].tolist()),
        "stages": [
            {
                "name": name,
                "value": value,
                "explained": explained,
                "shares": all_short(share[ids].tolist()),
                "left": int((values > -torch.inf).sum()),
                "entropy": short(_bits(share)),
            }
            for (name, value, explained, values), share in zip(stages, shares, strict=True)
        ],
    }


def _likeliest(shares: Sequence[Tensor]) -> list[int]:
    """The best of the model's own distribution, and those of the last one that are not among them."""
    first, last = (_best(share) for share in (shares[0], shares[-1]))
    return first + [token for token in last if token not in first]


def _best(share: Tensor) -> list[int]:
    """So many of the likeliest tokens, of equals the lower ids first; none that cannot be chosen."""
    least = share.topk(min(CANDIDATES, len(share))).values[-1]
    ids = ((share >= least) & (share > 0)).nonzero()[:, 0]
    order = share[ids].sort(descending=True, stable=True).indices
    found: list[int] = ids[order][:CANDIDATES].tolist()
    return found


def _bits(share: Tensor) -> float:
    return float(-torch.special.xlogy(share, share).sum() / torch.log(torch.tensor(2.0)))


def lens(decoder: Decoder, stream: Tensor, chosen: int) -> list[dict[str, Any]]:
    """What the model would say if it ended after the embedding, or after each layer [L + 1, dim].

    The final norm and the head read every layer's result as if it were the last (nostalgebraist 2020,
    "interpreting GPT: the logit lens").
    """
    logits = decoder.logits(decoder.final_norm(stream[None]))[0].double()
    shares = logits.softmax(-1).cpu()
    best = shares.topk(min(5, shares.shape[-1]))
    ranks = (shares > shares[:, chosen, None]).sum(-1)
    return [
        {
            "ids": ids,
            "shares": all_short(top, 4),
            "chosen": short(float(share[chosen]), 4),
            "rank": rank,
        }
        for ids, top, share, rank in zip(
            best.indices.tolist(), best.values.tolist(), shares, ranks.tolist(), strict=True
        )
    ]
