"""The one rule of tolerance: k times the measured noise plus half a step, row by row."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.envelope import Envelope, Noise, half_step, row_errors


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
    envelope = Envelope(run, floor, {"embed": Noise(largest=1e-6, rms=1e-7, rows=10)})
    assert envelope.allowance("embed") == (k * 1e-6 + floor, k * 1e-7 + floor)
