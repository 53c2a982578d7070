"""Public cases of the theme rope: D01, D04, D05, D06, and of D08 what concerns a scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine
from engine.errors import ModelFileError
from engine.families import read_spec
from engine.rope import Rotate, frequencies, table
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
    scaled = frequencies(rope_of(**given, rope_scaling=LLAMA_3_2), 0)
    ratio = (frequencies(rope_of(**given), 0) / scaled).tolist()
    assert ratio[:15] == [1.0] * 15
    assert ratio[15:18] == pytest.approx([1.6513, 3.2923, 9.6667], abs=5e-5)
    assert ratio[18:] == [32.0] * 14
    assert scaled[14:19].tolist() == pytest.approx(
        [0.003211446106, 0.001290548011, 0.0004295567051, 9.708286234e-05, 1.946163866e-05],
        rel=1e-9,
    )


# -- D04: dynamic NTK, whose frequencies follow the length and are forgotten with it ---------------

DYNAMIC = {
    "head_dim": 16,
    "rope_theta": 1e4,
    "max_position_embeddings": 16,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
}


def test_d04_the_base_is_stretched_beyond_the_context_alone() -> None:
    rope = rope_of(**DYNAMIC)
    plain = frequencies(Rope(16, 1e4), 0)
    for short in (1, 10, 16):
        assert torch.equal(frequencies(rope, short), plain)
    assert frequencies(rope, 40).tolist() == pytest.approx(
        [1, 0.25941283, 0.06729501, 0.01745719, 0.00452862, 0.00117478, 0.00030475, 7.9057e-05],
        rel=2e-5,
    )
    assert torch.equal(frequencies(rope, 40), frequencies(Rope(16, 48760.546), 40))


def test_d04_a_long_request_leaves_nothing_to_a_short_one(tmp_path: Path) -> None:
    engine = Engine.load(tiny.save_folder(tmp_path, tiny.CASE | DYNAMIC))
    ids = [n * 7 % 50 for n in range(32)]
    before = engine.logits(ids[:10])
    engine.logits(ids)
    assert torch.equal(engine.logits(ids[:10]), before)


@pytest.mark.parametrize("scheme", ["su", "mrope"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_d04_a_scheme_that_is_not_supported_is_refused_by_name(scheme: str, spelling: str) -> None:
    """Falling back to unscaled frequencies is right for short prompts and wrong for long ones."""
    with pytest.raises(ModelFileError, match=f"{spelling} '{scheme}' is not supported"):
        rope_of(rope_scaling={spelling: scheme, "factor": 2.0})


# -- D05: partial rotary ---------------------------------------------------------------------------


def test_d05_a_part_of_the_head_has_pairs_and_exponents_of_its_own() -> None:
    config = {
        "model_type": "phi3",
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "partial_rotary_factor": 0.5,
    }
    rope = read_spec(config)[1].layers[0].attn.rope
    assert rope is not None
    assert rope.dim == 16
    assert frequencies(rope, 0).tolist() == pytest.approx(
        [1, 0.31622776, 0.1, 0.03162278, 0.01, 0.00316228, 0.001, 0.00031623], abs=5e-9
    )
    x = torch.randn(1, 1, 4, 32, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(4)
    cos, sin = table(rope, frequencies(rope, 0), positions, torch.float32)
    turned = Rotate(rope)(x, (cos, sin))
    assert torch.equal(turned[..., 16:], x[..., 16:])
    for i in range(8):
        pair = x[..., i] * cos[:, i] - x[..., i + 8] * sin[:, i]
        assert torch.equal(turned[..., i], pair)


@pytest.mark.parametrize(
    "config",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rotary_pct": 0.25},
        {"rotary_dim": 4},
    ],
)
def test_d05_partial_rotary_that_llama_does_not_have_is_refused_by_name(
    config: dict[str, Any],
) -> None:
    """Rotating all dimensions agrees at position 0 and drifts from there."""
    with pytest.raises(ModelFileError, match=r"partial_rotary_factor|rotary_pct|rotary_dim"):
        rope_of(**config)


# -- D06: tables in float32, only cos and sin cast -------------------------------------------------

POSITIONS = torch.tensor([1, 255, 1000, 4095, 15962])


def test_d06_bfloat16_tables_are_float32_tables_cast_last() -> None:
    rope = rope_of(head_dim=16, rope_theta=500000.0)
    frequency = frequencies(rope, 0)
    phase = POSITIONS.float()[:, None] * frequency
    cos, sin = table(rope, frequency, POSITIONS, torch.bfloat16)
    assert torch.equal(cos, phase.cos().bfloat16())
    assert torch.equal(sin, phase.sin().bfloat16())


def test_d06_frequencies_rounded_first_would_show() -> None:
    """The fault's size, so that the test above is known to bite at these positions."""
    rope = rope_of(head_dim=16, rope_theta=500000.0)
    frequency = frequencies(rope, 0)
    right = table(rope, frequency, POSITIONS, torch.bfloat16)[0].float()
    wrong = table(rope, frequency.bfloat16().float(), POSITIONS, torch.bfloat16)[0].float()
    errors = (right - wrong).abs().amax(-1).tolist()
    assert errors == pytest.approx([0, 0.070, 0.246, 0.203, 0.275], abs=2e-3)


def test_d06_a_model_loaded_in_bfloat16_keeps_float32_frequencies(tmp_path: Path) -> None:
    tiny.save_folder(tmp_path, tiny.CASE)
    half, full = (Engine.load(tmp_path, dtype=dtype) for dtype in ("bfloat16", "float32"))
    for low, wide in zip(
        *(e.decoder.rotations.frequencies.values() for e in (half, full)), strict=True
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
