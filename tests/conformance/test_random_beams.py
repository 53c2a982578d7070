"""Random beam searches of random architectures, of every family, against transformers itself.

Deliberately one process for both, as in test_random_configs.py: nothing lies between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from conformance import strategies
from conformance.beams import Asked, judge
from conformance.cases import Case
from conformance.oracle.beams import Models
from conformance.oracle.capture import CLEAR
from conformance.oracle.tiny import tiny_checkpoint
from engine import Engine

# Of all families together 32, and 2,000 where Hypothesis searches at night.
EXAMPLES = (2_000 if settings().max_examples >= 10_000 else 32) / len(strategies.FAMILIES)
#: How far float32 moves a log-probability, at most: more than any tiny golden shows.
NOISE = 1e-5
TOKENS = 16  # of a prompt and its answer


@st.composite
def searches(draw: st.DrawFn, vocabulary: int, longest: int) -> dict[str, Any]:
    beams = draw(st.integers(2, min(5, vocabulary // 2)))
    token = st.integers(0, vocabulary - 1)
    asked: dict[str, Any] = {
        "beams": beams,
        "n": draw(st.integers(1, beams)),
        "max_tokens": draw(st.integers(1, min(9, longest))),
        "length_penalty": draw(st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0])),
        "early_stopping": draw(st.sampled_from([True, False, "never"])),
        "stop_token_ids": sorted(draw(st.sets(token, max_size=vocabulary // 3))),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 0.8, 1.3])),
        "no_repeat_ngram_size": draw(st.sampled_from([0, 0, 2, 3])),
    }
    asked["min_tokens"] = draw(st.integers(0, asked["max_tokens"] - 1))
    return asked


@pytest.mark.timeout(0)  # at night it takes long, on a busy machine longer
@pytest.mark.parametrize("family", strategies.FAMILIES)
@settings(
    max_examples=round(EXAMPLES),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_the_engine_finds_the_answers_that_transformers_finds(
    family: str, data: st.DataObject, seed: int
) -> None:
    config = data.draw(strategies.architectures(family, TOKENS))
    size = config["vocab_size"]
    assume(size > 5)  # or there is nothing to search
    with tempfile.TemporaryDirectory() as folder:
        tiny_checkpoint(Case("random", family, config, seed=seed), Path(folder))
        engine = Engine.load(folder, cache=data.draw(st.sampled_from(["ring", "paged"])))
        room = min(TOKENS, engine.spec.context)  # behind which the reference goes on, and we do not
        assume(room > 1)
        asked = data.draw(searches(size, room - 1))
        most = room - asked["max_tokens"]
        prompt = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=most))
        # Only of Phi-3 the reference reads keys anew where other frequencies begin to hold.
        assume(not set(range(len(prompt), room)) & engine.spec.rope_borders)
        kept = Models.of(Path(folder)).kept(prompt, asked, CLEAR * NOISE)
        if kept is None or kept["margin"] == 0:
            reject()
        assert list(judge(engine, Asked.of(kept, NOISE))) == []
