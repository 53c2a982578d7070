"""The one rule of tolerance: k times the measured noise plus half a step, row by row."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from conformance.envelope import Envelope, Noise, half_step, row_errors
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.tally import tiny_goldens


def model_goldens() -> list[Path]:
    return [*tiny_goldens(), REPOSITORY_GOLDENS / "smollm2-135m"]


def test_errors_are_relative_to_the_largest_truth_of_their_own_row() -> None:
    """One massive activation must not hide an error in another row."""
    truth = torch.tensor([[20000.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    value = truth + torch.tensor([[0.0, 0.5], [0.0, 0.5]])
    errors = row_errors(value, truth)
    assert errors.largest.tolist() == [0.5 / 20000.0, 0.25]
    assert errors.rms.tolist() == pytest.approx([0.125**0.5 / 20000.0, 0.125**0.5 / 2.0])


def test_masked_places_do_not_count_in_error_scale_or_mean() -> None:
    truth = torch.tensor([[1.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    value = torch.tensor([[1.5, -1e38, -torch.inf]])
    errors = row_errors(value, truth)
    assert errors.largest.tolist() == [0.5]
    assert errors.rms.tolist() == [0.5]


def test_any_error_in_a_row_of_zeros_is_beyond_every_allowance() -> None:
    errors = row_errors(torch.tensor([[0.0, 1e-30]]), torch.zeros(1, 2, dtype=torch.float64))
    assert errors.largest.item() > 1e100
    assert row_errors(torch.zeros(1, 2), torch.zeros(1, 2)).largest.item() == 0


def test_a_value_that_is_not_a_number_stays_one() -> None:
    """An error of NaN compares as False with every allowance: it must not become zero."""
    errors = row_errors(torch.tensor([[1.0, torch.nan]]), torch.ones(1, 2, dtype=torch.float64))
    assert not math.isfinite(errors.largest.item())


@pytest.mark.parametrize(("run", "k"), [("lockstep", 2), ("free", 3)])
def test_allowance_is_k_times_noise_plus_half_a_step(run: str, k: int) -> None:
    floor = half_step(torch.float32)
    assert floor == 2**-24
    noise = Noise(largest=1e-6, rms=1e-7, along=1e-8, rows=10)
    envelope = Envelope(run, floor, {"embed": noise})
    assert envelope.allowance("embed") == k * 1e-6 + floor
    errors = row_errors(torch.zeros(1, 1, 16), torch.ones(1, 16))
    allowed = {kind: float(a) for kind, (_, a) in envelope.kinds("embed", errors).items()}
    assert allowed == pytest.approx(
        {
            "largest": k * 1e-6 + floor,
            "rms": k * 1e-7 + floor,
            "along": k * 1e-8 + floor / 4,  # over 16 numbers
        }
    )


def test_a_wrong_factor_lies_along_the_truth_and_rounding_does_not() -> None:
    """In half precision a factor of 1.01 hides in the rounding of each number, but not in their sum."""
    truth = torch.randn(1, 576, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rounded = row_errors(truth.bfloat16()[None], truth)
    scaled = row_errors((truth * 1.01).bfloat16()[None], truth)
    assert float(scaled.largest) < 5 * float(rounded.largest)
    assert float(scaled.along) > 20 * float(rounded.along)


def test_a_row_that_cancels_is_measured_by_what_it_is_made_of() -> None:
    """A score near zero is a sum of large products: its rounding error is small beside those."""
    truth = torch.tensor([[1e-6]], dtype=torch.float64)
    value = truth + 1e-7
    assert float(row_errors(value[None], truth).largest) == pytest.approx(0.1)
    errors = row_errors(value[None], truth, scale=torch.tensor([2.0]))
    assert float(errors.largest) == pytest.approx(5e-8)


@pytest.mark.parametrize("folder", model_goldens(), ids=lambda folder: folder.name)
def test_no_allowance_exceeds_three_times_the_noise_plus_the_floor(folder: Path) -> None:
    """The policy has one number; a larger one in the code, or noise that is no number, is found here."""
    golden = Golden(folder)
    held = 0
    for dtype in golden.manifest["dtypes"]:
        for run in ("lockstep", "free"):
            envelope = golden.envelope(run, getattr(torch, dtype))
            for probe, noise in envelope.noise.items():
                values = (noise.largest, noise.rms, noise.along)
                assert all(math.isfinite(x) and 0 <= x < 1 for x in values), (probe, dtype, run)
                assert noise.rms <= noise.largest
                assert noise.rows >= len(golden.ids)
                assert envelope.allowance(probe) <= 3 * noise.largest + half_step(
                    getattr(torch, dtype)
                )
                held += 1
    assert held >= 2 * len(golden.manifest["dtypes"]) * len(golden.manifest["probes"])
