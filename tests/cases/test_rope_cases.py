"""Public cases of the theme rope that concern the llama family: D01, D04, D05, D06, D08."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.rope import frequencies, table
from engine.spec import Rope
from tests.engine import tiny


def rope_of(**changes: Any) -> Rope:
    _, spec = read_spec({**tiny.CASE, **changes})
    return spec.layers[0].attn.rope


# -- D01: the llama3 scaling block is used, and the right way round --------------------------------

LLAMA_3_2 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_d01_llama3_scaling_keeps_blends_and_stretches() -> None:
    given = {"head_dim": 64, "rope_theta": 500000.0}
    scaled = frequencies(rope_of(**given, rope_scaling=LLAMA_3_2))
    ratio = (frequencies(rope_of(**given)) / scaled).tolist()
    assert ratio[:15] == [1.0] * 15
    assert ratio[15:18] == pytest.approx([1.6513, 3.2923, 9.6667], abs=5e-5)
    assert ratio[18:] == [32.0] * 14
    assert scaled[14:19].tolist() == pytest.approx(
        [0.003211446106, 0.001290548011, 0.0004295567051, 9.708286234e-05, 1.946163866e-05],
        rel=1e-9,
    )


# -- D04: dynamic NTK is not there yet, and says so ------------------------------------------------


@pytest.mark.parametrize("scheme", ["dynamic", "yarn", "longrope", "su", "mrope"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_d04_a_scheme_that_is_not_supported_is_refused_by_name(scheme: str, spelling: str) -> None:
    """Falling back to unscaled frequencies is right for short prompts and wrong for long ones."""
    with pytest.raises(ModelFileError, match=f"{spelling} '{scheme}' is not supported"):
        rope_of(rope_scaling={spelling: scheme, "factor": 2.0})


# -- D05: partial rotary is not a property of llama, and is not ignored ----------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rotary_pct": 0.25},
        {"rotary_dim": 4},
    ],
)
def test_d05_partial_rotary_is_refused_by_name(config: dict[str, Any]) -> None:
    """Rotating all dimensions agrees at position 0 and drifts from there."""
    with pytest.raises(ModelFileError, match=r"partial_rotary_factor|rotary_pct|rotary_dim"):
        rope_of(**config)


# -- D06: tables in float32, only cos and sin cast -------------------------------------------------

POSITIONS = torch.tensor([1, 255, 1000, 4095, 15962])


def test_d06_bfloat16_tables_are_float32_tables_cast_last() -> None:
    frequency = frequencies(rope_of(head_dim=16, rope_theta=500000.0))
    phase = POSITIONS.float()[:, None] * frequency
    cos, sin = table(frequency, POSITIONS, torch.bfloat16)
    assert torch.equal(cos, phase.cos().bfloat16())
    assert torch.equal(sin, phase.sin().bfloat16())


def test_d06_frequencies_rounded_first_would_show() -> None:
    """The fault's size, so that the test above is known to bite at these positions."""
    frequency = frequencies(rope_of(head_dim=16, rope_theta=500000.0))
    right = table(frequency, POSITIONS, torch.bfloat16)[0].float()
    wrong = table(frequency.bfloat16().float(), POSITIONS, torch.bfloat16)[0].float()
    errors = (right - wrong).abs().amax(-1).tolist()
    assert errors == pytest.approx([0, 0.070, 0.246, 0.203, 0.275], abs=2e-3)


def test_d06_a_model_loaded_in_bfloat16_keeps_float32_frequencies(tmp_path: Path) -> None:
    tiny.save_folder(tmp_path, tiny.CASE)
    half, full = (Engine.load(tmp_path, dtype=dtype) for dtype in ("bfloat16", "float32"))
    for low, wide in zip(
        half.decoder.frequencies.values(), full.decoder.frequencies.values(), strict=True
    ):
        assert low.dtype == torch.float32
        assert torch.equal(low, wide)


# -- D08: spellings, beyond those that tests/cases/test_weights_cases.py runs -----------------------


@pytest.mark.parametrize("outer", [16, 8192])
def test_d08_an_original_context_beside_the_table_has_priority(outer: int) -> None:
    """As in transformers 5.24: the one inside the table loses, and both are known keys."""
    both = rope_of(rope_scaling=LLAMA_3_2, original_max_position_embeddings=outer)
    inside = rope_of(rope_scaling={**LLAMA_3_2, "original_max_position_embeddings": outer})
    assert both == inside


def test_d08_the_older_name_and_the_inner_theta_win() -> None:
    assert rope_of(rope_theta=1.0, rope_parameters={"rope_theta": 5e5}).theta == 5e5
    older = {"type": "linear", "factor": 4.0}
    both = rope_of(rope_scaling=older, rope_parameters={"rope_type": "default"})
    assert both == rope_of(rope_scaling=older)


def test_d08_without_an_original_context_it_is_the_model_s_own() -> None:
    given = {k: v for k, v in LLAMA_3_2.items() if not k.startswith("original")}
    got = rope_of(rope_scaling=given, max_position_embeddings=8192)
    assert got == rope_of(rope_scaling=LLAMA_3_2, max_position_embeddings=8192)
