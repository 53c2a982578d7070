"""Public cases of the theme cache that concern the engine's own loop: C05 (padded prompts), C06 (what an
earlier request left), C08 (several answers to a prompt), C09 (the end of the learned positions).

In every kind of cache; the paged one has NaN in its free blocks. With an int8 cache the engine is
batch-invariant, as it may round a key to another step else, and what is equal is equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine import Engine, SamplingParams
from engine.cache import PagedCache
from engine.errors import RequestError
from engine.generate.answer import Completion
from tests.cases.models import Models
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

CLOSE = 1e-5  # the cases' own tolerance
KINDS = ["contiguous", "ring", "paged", "paged int8"]
A = [i * 7 % 50 for i in range(60)]
B = [*A[:3], 9, 9, 9, 9, 9]

Make = Callable[[str], Engine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases' model with a window in one of its layers, for the ring."""
    window = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    qwen = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "use_sliding_window": True,
    }
    config = {**tiny.CASE, **qwen, **window, "max_position_embeddings": 128}
    return tiny.save_folder(tmp_path_factory.mktemp("model"), config, draw=tiny.case_draw(0.2))


@pytest.fixture(scope="module")
def make(folder: Path) -> Make:
    """An engine that has served nobody, with such a cache."""

    def engine(kind: str) -> Engine:
        name, _, dtype = kind.partition(" ")
        int8 = bool(dtype)
        made = Engine.load(folder, cache=name, cache_dtype=dtype or None, batch_invariant=int8)
        if name == "paged":
            made.pages = PagedCache(made.spec, 12, poison=True, store=made.store)
        return made

    return engine


def equal(got: Completion, expected: Completion, within: float) -> bool:
    """The same tokens, and log-probabilities of them all that are that close."""
    assert got.logprobs is not None and expected.logprobs is not None
    pairs = zip(got.logprobs, expected.logprobs, strict=True)
    off = max(abs(a.logprob - b.logprob) for a, b in pairs)
    return got.token_ids == expected.token_ids and off <= within


# -- C05: padding on the left ----------------------------------------------------------------------


def test_c05_a_padded_row_has_the_positions_of_its_own_tokens(models: Models) -> None:
    """Learned positions alone show it: turned by any angle alike, a rope's keys and queries agree."""
    engine = models.engine(models.folder("gpt2", n_positions=16))
    ids, longest = [7, 14, 21, 28, 35], [1, 8, 15, 22, 29, 36, 43, 0]
    rows = torch.tensor([[0, 0, 0, *ids], longest, [*ids, 0, 0, 0]])
    mask = torch.tensor([3 * [0] + 5 * [1], 8 * [1], 5 * [1] + 3 * [0]])
    padded = engine.logits_of(rows, mask)
    alone = engine.logits(ids)
    assert (padded[0, 3:] - alone).abs().max() <= CLOSE
    assert (padded[1] - engine.logits(longest)).abs().max() <= CLOSE
    assert (padded[2, :5] - alone).abs().max() <= CLOSE
    assert not padded[~mask.bool()].any()
    as_tokens = engine.logits([0, 0, 0, *ids])[3:]
    assert (as_tokens - alone).abs().max() > 1, "were padding read, it would show"


# -- C06: nothing of an earlier request is left ----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_c06_an_earlier_request_leaves_nothing(make: Make, kind: str) -> None:
    """Nor does one that is given up after some tokens, or before its first."""
    params = SamplingParams(max_tokens=20, ignore_eos=True, logprobs=0)
    within = 0.0 if "int8" in kind else CLOSE
    cold = {name: make(kind).generate(ids, params) for name, ids in (("A", A), ("B", B))}
    engine = make(kind)
    for name, ids in (("A", A), ("B", B), ("A", A)):
        assert equal(engine.generate(ids, params), cold[name], within)
    for pieces in (0, 3):
        given_up = engine.stream(A, params)
        for _ in range(pieces):
            next(given_up)
        given_up.close()
        for name, ids in (("B", B), ("A", A)):
            assert equal(engine.generate(ids, params), cold[name], within)
    if kind.startswith("paged"):
        assert engine.pages.hits > 100
        assert engine.pages.pool.available == engine.pages.pool.n


# -- C08: several answers to one prompt ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_c08_answers_to_one_prompt_do_not_meet(make: Make, kind: str, temperature: float) -> None:
    """The prompt ends within a block, which all of them begin by sharing."""
    how = {"max_tokens": 12, "temperature": temperature, "ignore_eos": True, "logprobs": 0}
    within = 0.0 if "int8" in kind else CLOSE
    engine, prompt = make(kind), A[:21]
    answers = engine.generate(prompt, SamplingParams(n=4, seed=11, **how))
    assert [answer.index for answer in answers] == [0, 1, 2, 3]
    assert {answer.usage["prompt_tokens"] for answer in answers} == {21}
    assert {answer.usage["completion_tokens"] for answer in answers} == {4 * 12}
    for i, answer in enumerate(answers):
        alone = make(kind).generate(prompt, SamplingParams(seed=11 + i, **how))
        assert equal(answer, alone, within)
    different = {tuple(answer.token_ids) for answer in answers}
    assert len(different) == (1 if temperature == 0 else 4)


# -- C09: the end of the learned positions ---------------------------------------------------------


@pytest.mark.parametrize("cache", ["contiguous", "ring", "paged"])
def test_c09_no_position_is_beyond_the_table(
    models: Models, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(models.folder("gpt2", n_positions=16), cache=cache)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    short, long = engine.generate([A[:3], A[:12]], params)
    assert (len(short.token_ids), short.finish_reason) == (10, "length")
    assert (len(long.token_ids), long.finish_reason) == (4, "length")
    monkeypatch.setattr(engine.decoder, "forward", lambda *a, **k: pytest.fail("was computed"))
    with pytest.raises(RequestError, match=r"20 tokens .* context is 16"):
        engine.generate([A[:3], A[:20]], params)
