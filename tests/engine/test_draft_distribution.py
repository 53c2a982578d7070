"""Draws with drafts have the exact distribution: Pearson's test over many seeds, which each wrong rule fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from conformance.decisions.sampling import p_value
from engine import Engine, PromptLookup, SamplingParams
from engine.cache import ContiguousCache
from engine.generate import Piece, scheduler
from engine.generate.answer import AnswerText
from engine.generate.draft_model import ModelDrafter
from engine.generate.request import Request
from engine.generate.scheduler import Scheduler
from engine.generate.speculation import Drafter
from tests.engine import tiny
from tests.engine.drafters import Wild
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

#: Of a sound engine's draws chance alone is that far off in one of a million runs; seeds are fixed, so
#: that a run is always the same one.
FALSE_ALARM = 1e-6
SEEDS = 1200
SHARED = SamplingParams(max_tokens=5, temperature=2.0, ignore_eos=True)
START = [1, 2, 1]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model of six tokens, so that each of three in a row is drawn often."""
    config = tiny.CASE | {"vocab_size": 6, "num_hidden_layers": 1}
    return Engine.load(tiny.save_folder(tmp_path_factory.mktemp("six"), config))


@pytest.fixture(scope="module")
def exact(six: Engine) -> Tensor:
    """The probabilities [216] of an answer's first three tokens, from logits of whole passes."""

    def shares(tokens: list[int]) -> Tensor:
        own = (six.logits([*START, *tokens])[-1].double() / SHARED.temperature).softmax(-1)
        if len(tokens) == 2:
            return own
        return torch.cat([own[token] * shares([*tokens, token]) for token in range(6)])

    return shares([])


def departure(six: Engine, drafter: Drafter, exact: Tensor) -> float:
    """How often chance alone departs that far from the exact shares: of many seeds' first three tokens.

    What is too rare for the test's approximation is counted together.
    """
    drawn: list[int] = []
    for first in range(0, SEEDS, 60):
        cache = ContiguousCache(six.spec, 8, batch=60)
        serving = Scheduler(six.decoder, cache, max_batch=60, drafter=drafter)
        requests = [
            Request(
                START,
                SamplingParams(**{**SHARED.__dict__, "seed": seed}),
                AnswerText(None, ()),
                limit=5,
                ends=set(),
            )
            for seed in range(first, first + 60)
        ]
        for request in requests:
            serving.submit(request)
        while not serving.idle:
            serving.step()
        assert serving.counters.drafted > 60
        answers = [request.tokens[3:6] for request in requests]
        drawn += [36 * a + 6 * b + c for a, b, c in answers]
    often = exact * SEEDS >= 5
    classes = torch.where(often, often.cumsum(0) - 1, int(often.sum()))
    shares = exact.new_zeros(int(often.sum()) + 1).index_add(0, classes, exact)
    return p_value(classes[drawn].tolist(), shares)


def drafters(six: Engine) -> Iterator[Drafter]:
    """A bad one, a lookup, and a good one: the model itself."""
    yield Wild(6)
    yield PromptLookup(ngram=1, tokens=4)
    yield ModelDrafter(six, 4, 60 * 8)


@pytest.mark.parametrize("which", range(3), ids=["bad", "lookup", "good"])
def test_draws_with_drafts_have_the_exact_distribution(
    six: Engine, exact: Tensor, which: int
) -> None:
    assert departure(six, list(drafters(six))[which], exact) > FALSE_ALARM


def _accepts_all(request: Request, drafts: Sequence[int], logits: Tensor) -> Iterator[Piece]:
    for draft, row in zip((*drafts, None), logits, strict=True):
        yield request.choose(row if draft is None else row + 1e9 * (torch.arange(6) == draft))


def _same_row(request: Request, drafts: Sequence[int], logits: Tensor) -> Iterator[Piece]:
    for draft in (*drafts, None):
        piece = request.choose(logits[0])
        yield piece
        if piece.token_ids != (draft,):
            return


def _wrong_bonus(request: Request, drafts: Sequence[int], logits: Tensor) -> Iterator[Piece]:
    for draft, row in zip((*drafts, None), (logits[-1], *logits[1:]), strict=True):
        piece = request.choose(row)
        yield piece
        if piece.token_ids != (draft,):
            return


def _without_the_draft(request: Request, drafts: Sequence[int], logits: Tensor) -> Iterator[Piece]:
    """Keeps a draft by a coin of its own, and draws from all of p where it is not kept."""
    for draft, row in zip((*drafts, None), logits, strict=True):
        share = 0.0 if draft is None else float((row / SHARED.temperature).softmax(-1)[draft])
        kept = float(torch.rand(1, generator=request._sampler.generator)) < share
        piece = request.choose(row + 1e9 * (torch.arange(6) == draft) if kept else row)
        yield piece
        if not kept:
            return


@pytest.mark.parametrize("wrong", [_accepts_all, _same_row, _wrong_bonus, _without_the_draft])
def test_wrong_rules_of_acceptance_depart_from_it(
    six: Engine,
    exact: Tensor,
    wrong: Callable[[Request, Sequence[int], Tensor], Iterator[Piece]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The power: each known way to get it wrong is beyond what the sound rule is allowed."""
    monkeypatch.setattr(scheduler, "followed", wrong)
    drafter = Wild(6) if wrong is _accepts_all else ModelDrafter(six, 4, 60 * 8)
    assert departure(six, drafter, exact) < FALSE_ALARM
