"""Public cases D01, D04, D05, D06: rotary tables are transformers' own, bit for bit, at any position.

Its modules make both sides' expectation: a position times a float32 frequency, in float32. One last bit
of a frequency moves cos at position 131,071 by 0.01, so equality is asked for and not nearness.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.oracle import rotary
from conformance.oracle.configs import written
from engine.families import read_spec
from engine.rope import Rotations
from tests.cases.models import FAMILIES, ROTARY

NEAR = torch.tensor([1, 7, 15, 255, 1000, 4095])
FAR = torch.tensor([100_000, 131_071, 1_000_000])
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

LLAMA_3_2 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": YARN,
    "yarn of gpt-oss": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
    "yarn of deepseek": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    "llama3": LLAMA_3_2,
}


def assert_tables_are_the_references(family: str, changes: dict[str, Any]) -> None:
    config = written(family, {**FAMILIES[family], **changes})
    _, spec = read_spec(config)
    ropes = [layer.attn.rope for layer in spec.layers]
    reference, compared = rotary.module_of(config), 0
    for positions in (NEAR, torch.cat((NEAR, FAR))):  # growing, as its dynamic ropes never shrink
        length = int(positions[-1]) + 1
        for dtype in DTYPES:
            expected = rotary.tables(reference, positions, dtype)
            tables = Rotations(ropes, "cpu")(positions, length, dtype)
            for rope, theirs in zip(ropes, expected, strict=True):
                if rope is None:  # the reference makes a table and leaves it
                    continue
                ours = tables[rope]
                assert ours is not None
                assert [t.dtype for t in ours] == [t.dtype for t in theirs]
                assert all(map(torch.equal, ours, theirs))
                compared += 1
    assert compared >= 6


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_d06_tables_of_every_rope_are_the_references_at_any_position(
    kind: str, theta: float
) -> None:
    """At the width and the length of real models."""
    assert_tables_are_the_references(
        "llama",
        {
            "head_dim": 128,
            "max_position_embeddings": 131_072,
            "rope_parameters": {**ROPES[kind], "rope_theta": theta},
        },
    )


@pytest.mark.parametrize("family", ROTARY)
def test_d06_tables_of_every_family_are_the_references(family: str) -> None:
    """Per-layer bases, interleaved pairs, a part of a head, float32 in a bfloat16 model."""
    assert_tables_are_the_references(family, {})


SCALED = [family for family in ROTARY if family not in ("phi3", "gemma3_text")]


@pytest.mark.parametrize("family", SCALED)
@pytest.mark.parametrize("kind", ["dynamic", "yarn", "llama3"])
def test_d01_d04_a_scaling_is_applied_in_every_family(family: str, kind: str) -> None:
    """One that is read and not applied is right for short prompts; here tokens lie beyond the context."""
    rope = {**ROPES[kind], "rope_theta": 10000.0}
    if kind != "dynamic":
        rope["original_max_position_embeddings"] = 16
    assert_tables_are_the_references(family, {"rope_parameters": rope})


@pytest.mark.parametrize("kind", ROPES)
def test_d01_the_scaling_of_one_kind_of_layer_is_not_the_others(kind: str) -> None:
    full = {**ROPES[kind], "rope_theta": 1e6}
    nested = {"full_attention": full, "sliding_attention": {**ROPES["linear"], "rope_theta": 1e4}}
    assert_tables_are_the_references("gemma3_text", {"rope_parameters": nested})


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1 + 0.1 * j for j in range(pairs)],
        "long_factor": [1 + 1.3 * j for j in range(pairs)],
        **more,
    }


@pytest.mark.parametrize("part", [1.0, 0.75, 0.5, 0.25])
@pytest.mark.parametrize("kind", ["default", "longrope"])
def test_d05_a_part_of_a_head_has_exponents_of_its_own_width(part: float, kind: str) -> None:
    """The short divisors up to position 4095, the long ones beyond."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    if kind == "longrope":
        rope = longrope(int(16 * part))
    assert_tables_are_the_references(
        "phi3",
        {
            "hidden_size": 128,
            "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096,
            "rope_parameters": {**rope, "partial_rotary_factor": part},
        },
    )
