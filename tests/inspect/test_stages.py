"""Where time goes: every second in one stage, by a clock that is told the time."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine, SamplingParams
from engine.backends import eager
from engine.inspect import inspected, stages
from engine.inspect.stages import EXPLAINED, STAGES, Clock, stage_of, timed
from engine.inspect.twin import twin

CPU = torch.device("cpu")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which one second passes between two looks."""
    ticks = count()
    monkeypatch.setattr(stages.time, "perf_counter", lambda: float(next(ticks)))


def test_a_stage_within_another_stops_the_other_s_clock(ticking: None) -> None:
    clock = Clock(CPU)
    clock.begin("layers.3")  # 0
    clock.begin("layers.3.attn")  # 1
    clock.begin("cache.layers.3")  # 2
    clock.end("cache.layers.3")  # 3
    clock.end("layers.3.attn")  # 4
    clock.end("layers.3")  # 5
    assert clock.seconds == {
        ("prompt", "residual sums"): 2.0,
        ("prompt", "attention"): 2.0,
        ("prompt", "cache"): 1.0,
    }
    assert clock.layers["prompt", 3, "attention"] == 2.0


def test_what_is_between_stages_is_in_none(ticking: None) -> None:
    clock = Clock(CPU)
    with clock.stage("tokenize"):  # 0 to 1
        pass
    clock.phase = "steps"
    with clock.stage("sampling"):  # 2 to 3
        pass
    assert clock.seconds == {("prompt", "tokenize"): 1.0, ("steps", "sampling"): 1.0}


def test_stages_of_a_run_add_up_to_it(ticking: None, engine: Engine) -> None:
    """Each look at the clock is a second: what no stage has is between two of them."""
    request = engine.request("Naive", SamplingParams(max_tokens=4, ignore_eos=True))
    decoder = twin(engine.decoder, eager.attend, "cpu")
    found = timed(engine, decoder, "Naive", request, 4)
    table = found.document({}, {}, 2)
    assert table["steps"] == 3
    outer = 2 + 2 * 4 + 4  # tokenize and a cache; sampling and text of each token; passes
    assert found.whole == sum(found.clock.seconds.values()) + outer + 1
    assert table["accounted"] == pytest.approx(1 - (outer + 1) / found.whole, abs=1e-4)
    rows = {row["stage"]: row for row in table["rows"]}
    total = sum(row["prompt"] + 3 * row["step"] for row in rows.values())
    assert total == pytest.approx(table["accounted"] * found.whole, rel=1e-3)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(table["accounted"], abs=1e-3)
    assert rows["tokenize"]["prompt"] == 1
    assert rows["embedding"]["step"] == 1
    assert rows["LM head"]["prompt"] == 1
    assert rows["sampling"]["step"] == pytest.approx(1)
    layers = table["layers"]["steps"]
    assert layers["attention"] == [3 * 2.0] * 2  # before the cache and behind it
    assert layers["cache"] == [3.0] * 2


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("", "plan"),
        ("embed.weight", "embedding"),
        ("layers.11.pre_attn_norm", "norms"),
        ("layers.0.attn.q_norm.weight", "attention"),
        ("cache.layers.2", "cache"),
        ("layers.1.mlp", "feed-forward"),
        ("layers.1", "residual sums"),
        ("final_norm.weight", "norms"),
        ("logits", "LM head"),
    ],
)
def test_a_module_s_stage_is_told_by_its_path(path: str, stage: str) -> None:
    assert stage_of(path) == stage


def test_each_stage_is_explained() -> None:
    assert EXPLAINED.keys() == set(STAGES)


def test_bytes_of_stages_are_of_what_was_made_and_read() -> None:
    engine = Engine.load(REPOSITORY_GOLDENS / "llama-gqa")
    ids = [i * 7 % 40 for i in range(12)]
    found: dict[str, Any] = inspected(engine, ids, SamplingParams(max_tokens=2))
    rows = {row["stage"]: row for row in found["time"]["rows"]}
    spec = engine.spec
    assert rows["embedding"]["tensors"] == len(ids) * spec.dim * 4
    assert rows["LM head"]["tensors"] == spec.vocab_size * 4
    # Of its three tensors [T, ffn_dim] all are alive when the product is formed.
    assert rows["feed-forward"]["tensors"] >= 3 * len(ids) * spec.layers[0].mlp.ffn_dim * 4
    assert rows["residual sums"]["tensors"] is None
    held = sum(p.nbytes for p in engine.decoder.parameters())
    assert sum(row["weights"] or 0 for row in rows.values()) == held
