"""Rotary frequencies against float64 twins, and the rotation against complex numbers."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.rope import Rotate, frequencies, table
from engine.spec import FrequencyDivisors, LinearScaling, Llama3Scaling, Rope
from tests.engine import tiny

THETAS = st.sampled_from([100.0, 10000.0, 500000.0, 1e6])
DIMS = st.integers(1, 64).map(lambda n: 2 * n)


def base(rope: Rope) -> list[float]:
    """theta^(-2j/D), one per pair, in Python's own floating point."""
    return [rope.theta ** (-2 * j / rope.dim) for j in range(rope.dim // 2)]


def close(got: torch.Tensor, want: list[float]) -> bool:
    """To the few float32 roundings of a power and a quotient."""
    return got.dtype == torch.float32 and got.tolist() == pytest.approx(want, rel=2e-6, abs=0)


@given(dim=DIMS, theta=THETAS)
def test_unscaled(dim: int, theta: float) -> None:
    """Not `pos * 0.0001`, and not half of the dimensions."""
    rope = Rope(dim, theta)
    assert close(frequencies(rope), base(rope))


@given(dim=DIMS, theta=THETAS, factor=st.floats(0.5, 40))
def test_linear_divides_every_frequency(dim: int, theta: float, factor: float) -> None:
    rope = Rope(dim, theta, LinearScaling(factor))
    assert close(frequencies(rope), [f / factor for f in base(rope)])


@given(data=st.data(), dim=st.integers(1, 8).map(lambda n: 2 * n))
def test_divisors_of_a_gguf_file_divide_one_frequency_each(data: st.DataObject, dim: int) -> None:
    divisor = st.floats(1, 32, width=32)
    divisors = data.draw(st.lists(divisor, min_size=dim // 2, max_size=dim // 2))
    rope = Rope(dim, 10000.0, FrequencyDivisors(tuple(divisors)))
    assert close(frequencies(rope), [f / d for f, d in zip(base(rope), divisors, strict=True)])


@given(
    dim=DIMS,
    theta=THETAS,
    factor=st.floats(1, 32),
    low=st.floats(0.5, 2),
    width=st.floats(0.5, 6),
    context=st.sampled_from([8, 256, 8192]),
)
def test_llama3_keeps_short_wavelengths_and_stretches_long_ones(
    dim: int, theta: float, factor: float, low: float, width: float, context: int
) -> None:
    rope = Rope(dim, theta, Llama3Scaling(factor, low, low + width, context))
    want = []
    for f in base(rope):
        wavelength = 2 * math.pi / f
        if wavelength > context / low:
            want.append(f / factor)
        elif wavelength < context / (low + width):
            want.append(f)
        else:
            share = (context / wavelength - low) / width
            want.append((1 - share) * f / factor + share * f)
    # The blend is continuous at both ends, so a rounding across a border costs no more than this.
    assert frequencies(rope).tolist() == pytest.approx(want, rel=1e-4, abs=0)


@tiny.examples(50)
@given(
    dim=st.integers(1, 8).map(lambda n: 2 * n),
    start=st.integers(0, 5000),
    seed=st.integers(0, 10**6),
)
def test_pairs_i_and_i_plus_half_turn_by_position_times_frequency(
    dim: int, start: int, seed: int
) -> None:
    """A pair is one complex number, and turning it is a product; GGUF's pairs 2i, 2i+1 differ."""
    rope = Rope(dim, 10000.0)
    x = torch.randn(1, 2, 3, dim, generator=torch.Generator().manual_seed(seed))
    frequency = frequencies(rope)
    got = Rotate()(x, table(frequency, torch.arange(start, start + 3), torch.float32))
    for t in range(3):
        # The angle is a float32 product: part of the model's definition, as transformers has it.
        angles = (torch.tensor(float(start + t)) * frequency).tolist()
        for j, angle in enumerate(angles):
            for h in range(2):
                pair = complex(x[0, h, t, j], x[0, h, t, j + dim // 2]) * cmath.exp(1j * angle)
                assert complex(got[0, h, t, j], got[0, h, t, j + dim // 2]) == pytest.approx(
                    pair, abs=2e-6
                )


def test_only_the_distance_of_query_and_key_counts() -> None:
    rope = Rope(16, 10000.0)
    rng = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=rng)
    frequency = frequencies(rope)

    def product(q_pos: int, k_pos: int) -> float:
        turned = [
            Rotate()(x, table(frequency, torch.tensor([pos]), torch.float32))
            for x, pos in ((q, q_pos), (k, k_pos))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(609, 600) == pytest.approx(product(9, 0), abs=1e-3)
    assert product(609, 600) != pytest.approx(product(609, 601), abs=1e-2)


def test_tables_are_exact_far_from_zero_in_bfloat16() -> None:
    """Positions above 256 do not survive bfloat16, so the cast comes last."""
    frequency = frequencies(Rope(16, 500000.0))
    positions = torch.tensor([1, 255, 1000, 4095, 15962])
    for low, wide in zip(
        table(frequency, positions, torch.bfloat16),
        table(frequency, positions, torch.float32),
        strict=True,
    ):
        assert torch.equal(low, wide.bfloat16())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rope(7, 1e4), "even head_dim, got 7"),
        (lambda: Rope(0, 1e4), "even head_dim, got 0"),
        (lambda: Rope(8, 0.0), "rope_theta must be positive, got 0.0"),
        (lambda: Rope(8, math.inf), "rope_theta must be positive, got inf"),
        (lambda: Rope(8, math.nan), "rope_theta must be positive, got nan"),
        (lambda: LinearScaling(0.0), "factor must be positive, got 0.0"),
        (lambda: Llama3Scaling(8.0, 4.0, 1.0, 16), "low_freq_factor < high_freq_factor"),
        (lambda: Llama3Scaling(8.0, 4.0, 4.0, 16), "low_freq_factor < high_freq_factor"),
        (lambda: Llama3Scaling(8.0, 1.0, 4.0, 0), "original_max_position_embeddings"),
        (lambda: Rope(8, 1e4, FrequencyDivisors((1.0, 2.0))), "has 2 entries, not 4"),
        (lambda: FrequencyDivisors((1.0, -2.0)), "must be positive"),
    ],
)  # fmt: skip
def test_impossible_ropes_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelFileError, match=message):
        make()
