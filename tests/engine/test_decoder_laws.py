"""Laws of the decoder: however a run is cut into steps, batched or attended, the logits are the same.

Two bounds: where a golden exists, its measured envelope around the float64 truth; for models drawn at
random, ORDER roundings of float32 at the size of the largest logit. In 3,000 random runs the median
difference was 2 roundings and the worst 43; positions off by one after the first chunk cost more than
100,000 in nine runs of ten (the rest had too few tokens to tell).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conformance.cases import CASES
from conformance.envelope import row_errors
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.strategies import ids, llama_configs, requests, schedules, splits
from engine import Engine
from engine.backends import supports
from engine.cache import ContiguousCache
from tests.engine import tiny
from tests.engine.zoo import ZOO

ORDER = 256
GOLDENS = [case.name for case in CASES if case.name.startswith("llama-") and not case.whole_prompts]


def same(value: Tensor, reference: Tensor) -> bool:
    unit = torch.finfo(torch.float32).eps * reference.abs().max()
    return bool((value - reference).abs().max() <= ORDER * unit)


@pytest.fixture(scope="module", params=GOLDENS)
def golden(request: pytest.FixtureRequest) -> tuple[Golden, Engine, Engine]:
    """A golden, and the engine that runs its model with each backend."""
    folder = REPOSITORY_GOLDENS / request.param
    return (
        Golden(folder),
        Engine.load(folder, backend="eager"),
        Engine.load(folder, backend="sdpa"),
    )


@tiny.examples(12)
@given(data=st.data())
def test_every_split_stays_inside_the_golden_envelope(
    golden: tuple[Golden, Engine, Engine], data: st.DataObject
) -> None:
    """A chunk whose positions restart or are off by one, or that sees too much, leaves it at once."""
    truth, *engines = golden
    tokens = truth.ids.tolist()
    steps = data.draw(splits(len(tokens)))
    envelope = truth.envelope("free", torch.float32)
    last = len(tokens)
    for engine in engines:
        got = tiny.logits(engine.decoder, tokens, steps)
        errors = row_errors(got, truth.truth("logits", 0, last), truth.scale("logits", 0, last))
        assert float(envelope.shares("logits", errors).max()) <= 1


@tiny.examples(40)
@given(config=llama_configs(), data=st.data())
def test_every_schedule_gives_the_logits_of_one_pass(
    config: dict[str, Any], data: st.DataObject
) -> None:
    """Prefill in chunks and decode steps equal one uncached pass, for both backends and any shape."""
    tokens = data.draw(ids(config["vocab_size"], max_size=20))
    steps = data.draw(schedules(len(tokens)))
    whole = tiny.logits(tiny.decoder(config, "eager"), tokens)
    for backend in ("eager", "sdpa"):
        assert same(tiny.logits(tiny.decoder(config, backend), tokens, steps), whole)


@pytest.mark.parametrize("kind", ZOO)
@tiny.examples(6)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_every_schedule_gives_the_logits_of_one_pass_whatever_the_blocks(
    kind: str, data: st.DataObject, seed: int
) -> None:
    """Windows, sinks, latents, learned positions and experts in chunks, by every kernel that fits."""
    spec = ZOO[kind]
    tokens = data.draw(ids(spec.vocab_size, min_size=2, max_size=14))
    steps = data.draw(schedules(len(tokens)))
    whole = tiny.logits(tiny.decoder_of(spec, seed=seed), tokens)
    for name in ("tiled", "sdpa", "flash"):
        if supports(name, spec):
            assert same(tiny.logits(tiny.decoder_of(spec, name, seed), tokens, steps), whole)


@tiny.examples(20)
@given(config=llama_configs(), data=st.data())
def test_what_comes_later_changes_nothing_before(
    config: dict[str, Any], data: st.DataObject
) -> None:
    """A mask that shows the future would be invisible to tests that compare last positions alone."""
    tokens = data.draw(ids(config["vocab_size"], min_size=2, max_size=12))
    n = data.draw(st.integers(1, len(tokens) - 1))
    other = [(t + 1) % config["vocab_size"] for t in tokens[n:]]
    model = tiny.decoder(config)
    assert same(
        tiny.logits(model, tokens[:n] + other)[:n],
        tiny.logits(model, tokens)[:n],
    )


@tiny.examples(15)
@given(config=llama_configs(), data=st.data())
def test_equal_rows_of_a_batch_equal_the_row_alone(
    config: dict[str, Any], data: st.DataObject
) -> None:
    tokens = data.draw(ids(config["vocab_size"], max_size=10))
    model = tiny.decoder(config, data.draw(st.sampled_from(["eager", "sdpa"])))
    alone = tiny.logits(model, tokens)
    with torch.inference_mode():
        batch = model(torch.tensor([tokens] * 3), ContiguousCache(model.spec, len(tokens), batch=3))
    assert all(same(row, alone) for row in batch)


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    model = tiny.decoder(tiny.CASE)
    rows = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 9, 1]]
    with torch.inference_mode():
        batch = model(torch.tensor(rows), ContiguousCache(model.spec, 4, batch=3))
    for got, row in zip(batch, rows, strict=True):
        assert same(got, tiny.logits(model, row))


@tiny.examples(10)
@given(data=st.data())
def test_one_request_after_another_in_a_new_cache_starts_from_nothing(data: st.DataObject) -> None:
    """State that outlives a cache would leak one request into the next."""
    model = tiny.decoder(tiny.CASE, "sdpa")
    for steps in data.draw(requests(16)):
        n = sum(steps)
        assert same(
            tiny.logits(model, tiny.CASE_IDS[:n], steps), tiny.logits(model, tiny.CASE_IDS[:n])
        )


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_positions_far_from_zero(backend: str, rope: dict[str, Any]) -> None:
    """Faults that grow with the position, such as an overflow or a restart, need long prompts."""
    config = {
        **tiny.CASE,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_theta": 10000.0, **rope},
    }
    del config["rope_theta"]
    model = tiny.decoder(config, backend)
    tokens = [i * 7 % 50 for i in range(603)]
    whole = tiny.logits(model, tokens)
    assert same(tiny.logits(model, tokens, [200, 399, 1, 1, 1, 1]), whole)


def test_only_the_last_position_is_projected_when_asked() -> None:
    model = tiny.decoder(tiny.CASE)
    with torch.inference_mode():
        last = model(torch.tensor([tiny.CASE_IDS]), ContiguousCache(model.spec, 24), last=1)
    assert last.shape == (1, 1, 50)
    assert same(last[0, 0], tiny.logits(model, tiny.CASE_IDS)[-1])
