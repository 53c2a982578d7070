"""Random architectures that nobody chose, of every family, against transformers itself.

Deliberately one process for both: each model's truth and noise are measured on the spot, by the same
code that makes the committed goldens, so nothing lies between. The engine reads the checkpoint as
transformers wrote it, or written again as the hub has it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance import strategies
from conformance.cases import Case
from conformance.engine_candidate import EngineCandidate
from conformance.oracle.capture import capture_quick
from conformance.verdict import trial
from engine import Engine
from engine.backends import supports

# Of the sixteen families together 300, and 5,000 where Hypothesis searches at night.
EXAMPLES = (5_000 if settings().max_examples >= 10_000 else 300) / len(strategies.FAMILIES)
TOKENS, DECODE_TOKENS = 16, 2


@pytest.mark.parametrize("family", strategies.FAMILIES)
@settings(max_examples=round(EXAMPLES), suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    seed=st.integers(0, 2**31),
    prompt=st.integers(6, TOKENS - DECODE_TOKENS),
    chunk=st.sampled_from([None, 7, 4, 2, 1]),
    respellings=st.sets(st.sampled_from(list(strategies.RESPELLINGS))),
    backend=st.sampled_from(["eager", "sdpa"]),
)
def test_the_engine_is_in_lockstep_with_transformers_on_any_architecture(
    family: str,
    data: st.DataObject,
    seed: int,
    prompt: int,
    chunk: int | None,
    respellings: set[str],
    backend: str,
) -> None:
    config = data.draw(strategies.architectures(family, TOKENS))
    whole_prompts = strategies.follows_length(config)
    case = Case(
        "random",
        family,
        config,
        seed=seed,
        prompt_tokens=prompt,
        decode_tokens=DECODE_TOKENS,
        whole_prompts=whole_prompts,
    )
    chunk = None if whole_prompts else chunk
    with tempfile.TemporaryDirectory() as folder:
        written, again = Path(folder) / "written", Path(folder) / "again"
        golden = capture_quick(case, written, chunk)
        strategies.respell(written, again, respellings)
        engine = Engine.load(again)
        fits = backend if supports(backend, engine.spec) else "eager"
        schedule = golden.schedule_in(chunk)
        result = trial(EngineCandidate(engine, fits), golden, torch.float32, schedule)
    assert result.conforms, result
    assert result.probes >= 17
