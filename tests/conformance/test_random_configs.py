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


@pytest.mark.timeout(0)  # at night a family takes ten minutes, on a busy machine more
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
    assert_in_lockstep(case, None if whole_prompts else chunk, respellings, backend)


#: Where a sum has two terms or an activation a long tail, orders of sums show nothing of what other
#: code rounds otherwise: these were false alarms.
NARROW = [
    (
        Case(
            "random",
            "phi3",
            {
                "vocab_size": 6,
                "hidden_size": 2,
                "intermediate_size": 24,
                "num_hidden_layers": 3,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "rms_norm_eps": 0.01,
                "sliding_window": None,
                "hidden_act": "gelu",
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 1.0,
                },
                "bos_token_id": None,
                "eos_token_id": None,
                "pad_token_id": None,
            },
            seed=6881322,
            prompt_tokens=6,
            decode_tokens=DECODE_TOKENS,
        ),
        "eager",
    ),
    (
        Case(
            "random",
            "gemma2",
            {
                "vocab_size": 29,
                "hidden_size": 54,
                "intermediate_size": 33,
                "num_hidden_layers": 3,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "head_dim": 2,
                "tie_word_embeddings": False,
                "max_position_embeddings": 4,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                    "original_max_position_embeddings": 2,
                },
                "rms_norm_eps": 1e-6,
                "attention_bias": False,
                "hidden_activation": "gelu",
                "query_pre_attn_scalar": 1,
                "attn_logit_softcapping": None,
                "sliding_window": 10,
                "bos_token_id": None,
                "eos_token_id": None,
                "pad_token_id": None,
            },
            seed=24733,
            prompt_tokens=9,
            decode_tokens=DECODE_TOKENS,
        ),
        "sdpa",
    ),
]


@pytest.mark.parametrize(("case", "backend"), NARROW, ids=["activation", "two-terms"])
def test_other_code_for_the_same_function_is_no_fault(case: Case, backend: str) -> None:
    assert_in_lockstep(case, None, set(), backend)


def assert_in_lockstep(case: Case, chunk: int | None, respellings: set[str], backend: str) -> None:
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
