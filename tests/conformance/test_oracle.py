"""The reference behind every golden: its truth is float64, its doors change nothing, its noise is legal.

The one place where tests run transformers in their own process: they are about it, not about the engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.envelope import Noise
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.goldens import verify
from conformance.lockstep import everywhere, nowhere, walk
from conformance.oracle.answers import logits as plain_logits
from conformance.oracle.model import Oracle, load
from conformance.oracle.noise import ENSEMBLE
from conformance.oracle.truth import Float64
from conformance.reorder import SplitK, Variant

GOLDEN = REPOSITORY_GOLDENS / "llama-gqa"


@pytest.fixture(scope="module")
def model() -> Any:
    return load(GOLDEN, torch.float32)


def last_logits(model: Any, golden: Golden) -> Tensor:
    shown: list[Tensor] = []

    def tap(probe: str, value: Tensor) -> Tensor:
        if probe == "logits":
            shown.append(value[0].clone())
        return value

    oracle = Oracle(model)
    oracle.begin(len(golden.ids))
    oracle.step(golden.ids, tap)
    return shown[0]


def test_a_double_model_is_not_float64_until_the_mode_makes_it_so(golden: Golden) -> None:
    """transformers casts to float32 in norms and softmax: `.double()` alone keeps that error."""
    model = load(GOLDEN, torch.float64)
    truth = golden.truth("logits", 0, len(golden.ids))
    with torch.no_grad():
        half_way = model(golden.ids[None]).logits[0]
    real = last_logits(model, golden)
    assert real.dtype == torch.float64
    scale = float(truth.abs().max())
    assert float((half_way - truth).abs().max()) / scale > 1e-9
    assert float((real - truth).abs().max()) / scale < 1e-13


def test_the_mode_widens_every_way_to_ask_for_float32() -> None:
    with Float64():
        x = torch.ones(3, dtype=torch.float64)
        assert x.float().dtype == torch.float64
        assert x.to(torch.float32).dtype == torch.float64
        assert x.to(dtype=torch.float32).dtype == torch.float64
        assert torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2, dtype=torch.float32).dtype == torch.float64
    assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float32


@pytest.mark.parametrize("parts", [2, 4])
def test_a_split_product_is_the_product_in_another_order(parts: int) -> None:
    x, w, b = (
        torch.randn(3, 7, dtype=torch.float64),
        torch.randn(5, 7, dtype=torch.float64),
        torch.ones(5),
    )
    with SplitK(parts):
        mapped = torch.nn.functional.linear(x, w, b.double())
        product = torch.matmul(x, w.transpose(0, 1))
    assert torch.allclose(mapped, x @ w.T + b, atol=1e-14)
    assert torch.allclose(product, x @ w.T, atol=1e-14)


def test_open_doors_change_no_bit_of_the_reference(model: Any, golden: Golden) -> None:
    assert torch.equal(
        last_logits(model, golden), plain_logits(model, golden.ids.tolist(), "eager")
    )


def test_every_operation_is_shown_once_in_the_order_of_execution(
    model: Any, golden: Golden
) -> None:
    order: list[str] = []

    def tap(probe: str, value: Tensor) -> Tensor:
        order.append(probe)
        return value

    oracle = Oracle(model)
    oracle.begin(len(golden.ids))
    oracle.step(golden.ids[:5], tap)
    first = list(order)
    assert first == golden.manifest["probes"]
    oracle.step(golden.ids[5:6], tap)
    assert order == first * 2
    for layer in range(3):
        at = [
            first.index(f"layers.{layer}.attn.{op}")
            for op in ("q_rope", "scores", "weights", "out")
        ]
        assert at == sorted(at)


@pytest.mark.parametrize(
    "probe", ["layers.1.attn.scores", "layers.0.attn.k_rope", "layers.2.mlp.act"]
)
def test_what_a_tap_returns_is_what_the_reference_goes_on_with(
    model: Any, golden: Golden, probe: str
) -> None:
    """A lockstep run of the oracle would be a free run if its doors only opened outwards."""

    def tap(name: str, value: Tensor) -> Tensor:
        if name == "logits":
            shown.append(value[0].clone())
        return value * 3 if name == probe else value

    shown: list[Tensor] = []
    oracle = Oracle(model)
    oracle.begin(len(golden.ids))
    oracle.step(golden.ids[:7], tap)
    untouched = last_logits(model, golden)[:7]
    assert float((shown[0] - untouched).abs().max()) > 0.01


@pytest.mark.parametrize("variant", ENSEMBLE, ids=lambda v: v.name)
def test_every_variant_of_the_ensemble_is_legal(
    model: Any, golden: Golden, variant: Variant
) -> None:
    """Each differs from the truth by float32 rounding alone, free and in lockstep."""
    schedule = golden.schedule_in(variant.chunk)
    for hand_on, limit in ((nowhere, 2e-5), (everywhere, 2e-6)):
        result = walk(Oracle(model, variant), golden, torch.float32, hand_on, schedule)
        assert [m.probe for m in result.measurements if m.errors is None] == []
        worst = max(float(m.errors.largest.max()) for m in result.measurements if m.errors)
        assert 0 < worst < limit
    assert len({v.name for v in ENSEMBLE}) == len(ENSEMBLE)


def test_padding_is_cut_away_before_anything_is_compared(model: Any, golden: Golden) -> None:
    shapes: dict[str, tuple[int, ...]] = {}

    def tap(probe: str, value: Tensor) -> Tensor:
        shapes[probe] = tuple(value.shape)
        return value

    oracle = Oracle(model, Variant(pad=3, batch=2))
    oracle.begin(len(golden.ids))
    oracle.step(golden.ids[:5], tap)
    assert shapes["layers.0.attn.scores"] == (2, 4, 5, 5)
    assert shapes["cache.layers.0.k"] == (2, 2, 5, 16)
    assert shapes["logits"] == (2, 5, 67)


def test_the_stored_noise_is_float_rounding_and_grows_with_the_dtype(golden: Golden) -> None:
    table = json.loads((GOLDEN / "noise.json").read_text())
    assert set(table) == {"float32", "bfloat16", "float16"}
    for run in ("lockstep", "free"):
        for probe in golden.manifest["probes"]:
            narrow, wide = (Noise(*table[d][run][probe]) for d in ("bfloat16", "float32"))
            expected = len(golden.ids) * len(ENSEMBLE) * (0.7 if "attn.s" in probe else 0.5)
            assert narrow.rows == wide.rows >= expected
            assert narrow.largest >= narrow.rms >= narrow.along >= 0
            if probe != "embed":
                assert 2e-8 < wide.largest < 1e-5 < 1e-3 < narrow.largest < 0.5
    # An operation's own error does not grow with depth; a run's does.
    free, own = (Noise(*table["float32"][run]["logits"]) for run in ("free", "lockstep"))
    assert free.largest > 3 * own.largest


@pytest.mark.timeout(300)
def test_a_golden_made_again_agrees_with_the_committed_one() -> None:
    report = verify(["llama-tied", "text-llama3"], lambda _: None)
    model, text = report.goldens
    assert report.exit_status == 0, model.moves
    assert not text.changed
