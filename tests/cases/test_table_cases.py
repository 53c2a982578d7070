"""Public cases D01, D04, D05, D06: rotary tables are transformers' own, bit for bit, at any position.

An angle is a position times a float32 frequency, in float32. One last bit of a frequency moves cos at
position 131,071 by 0.01, so equality is asked for and not nearness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.oracle import answers, rotary
from conformance.oracle.configs import written
from conformance.oracle.model import forget_lengths
from engine.families import read_spec
from engine.rope import Rotations
from tests.cases.models import FAMILIES, IDS, ROTARY, Models, differ
from tests.engine import tiny
from tests.engine.tiny import one_thread  # noqa: F401  (applies to this module)

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
        lengths = torch.full_like(positions, int(positions[-1]) + 1)
        for dtype in DTYPES:
            expected = rotary.tables(reference, positions, dtype)
            tables = Rotations(ropes, "cpu")(positions, lengths, dtype)
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


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_d06_the_suites_own_reference_keeps_float32_frequencies(
    family: str, dtype: torch.dtype, models: Models
) -> None:
    """Goldens would be wrong if it did not: a model that is cast as a whole has its table cast, too."""
    folder = models.folder(family)
    rope = models.reference(folder, dtype).base_model.rotary_emb
    fresh = rotary.module_of(written(family, FAMILIES[family]))
    expected = rotary.tables(fresh, NEAR, dtype)
    for theirs, right in zip(rotary.tables(rope, NEAR, dtype), expected, strict=True):
        assert all(map(torch.equal, theirs, right))
    if dtype is not torch.float32:
        cast = rotary.tables(fresh.to(dtype), NEAR, dtype)
        assert not any(torch.equal(a[0], b[0]) for a, b in zip(cast, expected, strict=True))


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


# -- D04: the two paths beyond the context ---------------------------------------------------------

BEYOND = {
    "max_position_embeddings": 16,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
}
DYNAMIC = [family for family in ROTARY if family != "phi3"]


def dynamic(family: str, models: Models) -> Path:
    changes = dict(BEYOND)
    if family == "gemma3_text":
        kinds = ("full_attention", "sliding_attention")
        changes["rope_parameters"] = dict.fromkeys(kinds, BEYOND["rope_parameters"])
    return models.folder(family, **changes)


@pytest.mark.parametrize("family", DYNAMIC)
def test_d04_a_prompt_of_any_length_is_the_references_whole_pass(
    family: str, models: Models
) -> None:
    """Short, long, short again: a pass knows nothing of an earlier one, which in transformers it may.

    A prompt in chunks is the prompt: the engine tells each chunk the whole length.
    """
    folder = dynamic(family, models)
    engine, reference = models.engine(folder), models.reference(folder, torch.float32)
    for length, chunk in ((16, None), (24, None), (17, 5), (16, 5)):
        forget_lengths(reference)
        expected = answers.logits(reference, IDS[:length], "eager")
        assert differ(engine.logits(IDS[:length], chunk), expected) < 1e-5


def test_d04_the_reference_keeps_a_long_requests_base_for_a_shorter_one(models: Models) -> None:
    """What this engine's parity does not mirror: 17 tokens after 24 are not those before them."""
    reference = models.reference(dynamic("llama", models), torch.float32)
    forget_lengths(reference)
    first, _, second = (answers.logits(reference, IDS[:n], "eager") for n in (17, 24, 17))
    assert differ(second, first) > 1e-4


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "deepseek_v3"])
def test_d04_a_decode_step_beyond_the_context_is_the_references_cached_step(
    family: str, models: Models
) -> None:
    """Both turn a new token by the base of the length so far, and leave the cached keys as they are.

    So neither is the whole pass any more; parity there is with transformers' cached decoding.
    """
    folder = dynamic(family, models)
    expected = answers.logits_in_chunks(models.reference(folder, torch.float32), IDS, 1)
    decoder = models.engine(folder).decoder
    assert differ(tiny.logits(decoder, IDS, [1] * len(IDS)), expected) < 1e-5
    whole = tiny.logits(decoder, IDS)
    assert differ(whole[:16], expected[:16]) > 1e-5, "the prompt knows its length from the start"
    assert differ(whole[17:], expected[17:]) > 1e-4
