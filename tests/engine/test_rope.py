"""Rotary frequencies against float64 twins, and the rotation against complex numbers."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelFileError
from engine.rope import Rotate, Rotations, frequencies, rotate, table
from engine.spec import (
    DynamicScaling,
    FrequencyDivisors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)
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
    assert close(frequencies(rope, 7), base(rope))


@given(dim=DIMS, theta=THETAS, factor=st.floats(0.5, 40))
def test_linear_divides_every_frequency(dim: int, theta: float, factor: float) -> None:
    rope = Rope(dim, theta, LinearScaling(factor))
    assert close(frequencies(rope, 7), [f / factor for f in base(rope)])


@given(data=st.data(), dim=st.integers(1, 8).map(lambda n: 2 * n))
def test_divisors_of_a_gguf_file_divide_one_frequency_each(data: st.DataObject, dim: int) -> None:
    divisor = st.floats(1, 32, width=32)
    divisors = data.draw(st.lists(divisor, min_size=dim // 2, max_size=dim // 2))
    rope = Rope(dim, 10000.0, FrequencyDivisors(tuple(divisors)))
    assert close(frequencies(rope, 7), [f / d for f, d in zip(base(rope), divisors, strict=True)])


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
    assert frequencies(rope, 7).tolist() == pytest.approx(want, rel=1e-4, abs=0)


LENGTHS = st.integers(1, 400)
FACTORS = st.sampled_from([1.0, 1.5, 4.0, 40.0])


@given(
    dim=st.integers(2, 64).map(lambda n: 2 * n),
    theta=THETAS,
    factor=FACTORS,
    context=st.integers(1, 200),
    length=LENGTHS,
)
def test_dynamic_stretches_the_base_beyond_the_context_alone(
    dim: int, theta: float, factor: float, context: int, length: int
) -> None:
    """The base grows with the sequence; within the context it is as it was."""
    rope = Rope(dim, theta, DynamicScaling(factor, context))
    beyond = max(length / context, 1)
    stretched = theta * (factor * beyond - (factor - 1)) ** (dim / (dim - 2))
    want = [stretched ** (-2 * j / dim) for j in range(dim // 2)]
    # The base is a float32 number that is as large as a million, and its power has those roundings.
    assert frequencies(rope, length).tolist() == pytest.approx(want, rel=1e-5, abs=0)


@given(data=st.data(), dim=st.integers(1, 8).map(lambda n: 2 * n), length=LENGTHS)
def test_longrope_divides_by_the_long_list_from_one_token_beyond_the_original_context(
    data: st.DataObject, dim: int, length: int
) -> None:
    pairs = st.tuples(*[st.floats(1, 32, width=32)] * (dim // 2))
    short, long = data.draw(pairs), data.draw(pairs)
    context = data.draw(st.sampled_from([length - 1, length, length + 1]).filter(bool))
    rope = Rope(dim, 10000.0, LongRopeScaling(short, long, context))
    divisors = long if length > context else short
    assert close(
        frequencies(rope, length), [f / d for f, d in zip(base(rope), divisors, strict=True)]
    )


@given(
    dim=st.integers(1, 64).map(lambda n: 2 * n),
    theta=THETAS,
    factor=FACTORS,
    context=st.sampled_from([8, 256, 4096]),
    betas=st.sampled_from([(32.0, 1.0), (4.0, 2.0), (0.5, 0.02)]),
    truncate=st.booleans(),
)
def test_yarn_keeps_pairs_of_many_turns_and_interpolates_those_of_few(
    dim: int, theta: float, factor: float, context: int, betas: tuple[float, float], truncate: bool
) -> None:
    """Peng et al. 2023, equations 19 to 23; the ramp is over the numbers of the pairs, not their turns."""
    fast, slow = (
        dim / 2 * (math.log(context) - math.log(2 * math.pi * turns)) / math.log(theta)
        for turns in betas
    )
    if truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, dim - 1)
    want = []
    for j, f in enumerate(base(Rope(dim, theta))):
        share = min(max((j - fast) / (slow - fast or 0.001), 0), 1)
        want.append(share * f / factor + (1 - share) * f)
    rope = Rope(dim, theta, YarnScaling(factor, context, *betas, truncate))
    assert frequencies(rope, 7).tolist() == pytest.approx(want, rel=1e-5, abs=0)


@tiny.examples(80)
@given(
    dim=st.integers(1, 8).map(lambda n: 2 * n),
    rest=st.integers(0, 5),
    interleaved=st.booleans(),
    magnitude=st.sampled_from([1.0, 0.8, 1.3]),
    start=st.integers(0, 5000),
    seed=st.integers(0, 10**6),
)
def test_each_pair_turns_by_position_times_frequency_and_the_rest_stays(
    dim: int, rest: int, interleaved: bool, magnitude: float, start: int, seed: int
) -> None:
    """A pair is one complex number, and turning it is a product; it lies in halves or side by side.

    Either way it comes out as halves. Frequencies are those of the numbers turned, not of the head.
    """
    rope = Rope(dim, 10000.0, magnitude=magnitude, interleaved=interleaved)
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 2, 3, dim + rest, generator=rng)
    frequency = frequencies(rope, 7)
    got = Rotate(rope)(x, table(rope, frequency, torch.arange(start, start + 3), torch.float32))
    assert torch.equal(got[..., dim:], x[..., dim:])
    for t in range(3):
        # The angle is a float32 product: part of the model's definition, as transformers has it.
        angles = (torch.tensor(float(start + t)) * frequency).tolist()
        for j, angle in enumerate(angles):
            first, second = (2 * j, 2 * j + 1) if interleaved else (j, j + dim // 2)
            turn = cmath.exp(1j * angle) * magnitude
            for h in range(2):
                pair = complex(x[0, h, t, first], x[0, h, t, second]) * turn
                assert complex(got[0, h, t, j], got[0, h, t, j + dim // 2]) == pytest.approx(
                    pair, abs=2e-6
                )


def test_only_the_distance_of_query_and_key_counts() -> None:
    rope = Rope(16, 10000.0)
    rng = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=rng)
    frequency = frequencies(rope, 7)

    def product(q_pos: int, k_pos: int) -> float:
        turned = [
            Rotate(rope)(x, table(rope, frequency, torch.tensor([pos]), torch.float32))
            for x, pos in ((q, q_pos), (k, k_pos))
        ]
        return float((turned[0] * turned[1]).sum())

    assert product(609, 600) == pytest.approx(product(9, 0), abs=1e-3)
    assert product(609, 600) != pytest.approx(product(609, 601), abs=1e-2)


def test_tables_are_exact_far_from_zero_in_bfloat16() -> None:
    """Positions above 256 do not survive bfloat16, so the cast comes last, after the magnitude."""
    rope = Rope(16, 500000.0, magnitude=1.3)
    frequency = frequencies(rope, 7)
    positions = torch.tensor([1, 255, 1000, 4095, 15962])
    for low, wide in zip(
        table(rope, frequency, positions, torch.bfloat16),
        table(rope, frequency, positions, torch.float32),
        strict=True,
    ):
        assert torch.equal(low, wide.bfloat16())


@pytest.mark.parametrize("in_float32", [False, True])
def test_a_rotation_in_float32_rounds_once_and_the_other_at_every_step(in_float32: bool) -> None:
    rope = Rope(8, 100.0, in_float32=in_float32)
    x = torch.randn(1, 2, 5, 11, generator=torch.Generator().manual_seed(2)).bfloat16()
    frequency = frequencies(rope, 7)
    got = Rotate(rope)(x, table(rope, frequency, torch.arange(5), torch.bfloat16))
    cos, sin = table(rope, frequency, torch.arange(5), torch.float32)
    exact = Rotate(rope)(x.float(), (cos, sin)).bfloat16()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, exact) == in_float32


def test_tables_follow_the_length_where_the_scaling_does_and_forget_longer_sequences() -> None:
    """A long request must not leave its frequencies to the short one after it."""
    dynamic = Rope(8, 1e4, DynamicScaling(2.0, 16))
    long = Rope(8, 1e4, LongRopeScaling((1.0,) * 4, (3.0,) * 4, 16))
    fixed = Rope(8, 1e4)
    rotations = Rotations([dynamic, fixed, None, long, fixed], "cpu")
    positions = torch.arange(10)

    def tables(length: int) -> dict[Rope | None, list[list[float]] | None]:
        given = rotations(positions, torch.full_like(positions, length), torch.float32)
        assert given.keys() == {dynamic, fixed, None, long}
        return {r: None if t is None else t[0].tolist() for r, t in given.items()}

    first, longer, again = (tables(length) for length in (10, 40, 10))
    assert first == again
    assert first[None] is None
    assert first[fixed] == first[dynamic] == first[long] == longer[fixed]
    for rope in (dynamic, long):
        want = table(rope, frequencies(rope, 40), positions, torch.float32)
        assert longer[rope] == want[0].tolist() != first[rope]


def test_a_layer_without_a_rope_hands_on_the_very_tensor() -> None:
    x = torch.randn(1, 2, 3, 4)
    assert rotate(None)(x, None) is x


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
        (lambda: Rope(8, 1e4, magnitude=0.0), "magnitude must be positive: 0.0"),
        (lambda: DynamicScaling(2.0, 0), "needs a positive context"),
        (lambda: YarnScaling(4.0, 0, 32.0, 1.0, True), "original_max_position_embeddings"),
        (lambda: Rope(2, 1e4, DynamicScaling(2.0, 16)), "dynamic needs more than 2 numbers"),
        (lambda: YarnScaling(4.0, 64, 32.0, 0.0, True), "positive beta_fast and beta_slow"),
        (lambda: YarnScaling(4.0, 64, 1e308, 1.0, True), "beta_slow of a sane size, got 1e.308"),
        (lambda: YarnScaling(4.0, 64, 32.0, 1e-320, True), "beta_slow of a sane size"),
        (lambda: Rope(8, 1.0, YarnScaling(4.0, 64, 32.0, 1.0, True)), "rope_theta other than 1"),
        (lambda: LongRopeScaling((1.0,), (0.0,), 64), "short_factor and long_factor"),
        (lambda: Rope(4, 1e4, LongRopeScaling((1.0,) * 2, (1.0,), 8)), "long_factor has 1 entries"),
    ],
)  # fmt: skip
def test_impossible_ropes_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ModelFileError, match=message):
        make()
