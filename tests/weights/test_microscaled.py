"""MXFP4 against values worked out by hand from the OCP Microscaling specification 1.0."""

from __future__ import annotations

import math

import pytest
import torch

from engine.weights import microscaled
from engine.weights.microscaled import decode

# The sixteen codes of E2M1 in order, table 5 of the specification.
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def bytes_of(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def test_every_code_is_the_number_of_the_specification() -> None:
    """A block whose bytes are 0x10, 0x32 ... 0xFE, twice, holds the codes in ascending order."""
    ascending = bytes_of(*((2 * j + 1) << 4 | 2 * j for j in range(8)))
    numbers = decode(ascending.repeat(2)[None], bytes_of(127), torch.float32)
    assert numbers.tolist() == E2M1 * 2
    assert math.copysign(1, numbers[8]) == -1


@pytest.mark.parametrize(
    ("scale", "factor"),
    [(127, 1.0), (128, 2.0), (126, 0.5), (0, 2.0**-127), (100, 2.0**-27), (252, 2.0**125)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_scale_is_a_power_of_two_with_the_bias_127(
    scale: int, factor: float, dtype: torch.dtype
) -> None:
    """Exact in both dtypes, down to the subnormals that 2^-127 makes."""
    block = torch.full((1, 16), 0x3F, dtype=torch.uint8)  # -6 in the low half, 1.5 in the high one
    numbers = decode(block, bytes_of(scale), dtype)
    assert numbers.dtype == dtype
    assert numbers.double().tolist() == [-6 * factor, 1.5 * factor] * 16


def test_the_scale_255_is_no_number() -> None:
    assert decode(torch.zeros(1, 16, dtype=torch.uint8), bytes_of(255), torch.float32).isnan().all()


def test_each_block_has_its_own_scale_and_pieces_are_as_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = torch.Generator().manual_seed(5)
    blocks = torch.randint(0, 256, (3, 7, 2, 16), generator=rng, dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, 7, 2), generator=rng, dtype=torch.uint8)
    want = [
        E2M1[code] * 2.0 ** (int(scales[e, row, n]) - 127)
        for e in range(3)
        for row in range(7)
        for n in range(2)
        for byte in blocks[e, row, n].tolist()
        for code in (byte & 15, byte >> 4)
    ]
    whole = decode(blocks, scales, torch.float32)
    assert whole.shape == (3, 7, 64)
    assert whole.flatten().tolist() == want
    monkeypatch.setattr(microscaled, "_AT_ONCE", 4 * 32)  # four rows at a time, the last time one
    assert torch.equal(decode(blocks, scales, torch.float32), whole)


@pytest.mark.parametrize(
    ("blocks", "scales"), [((4, 2, 16), (4, 3)), ((4, 2, 16), (2,)), ((4, 2, 8), (4, 2))]
)
def test_blocks_and_scales_that_do_not_go_together_are_refused(
    blocks: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    for device in ("cpu", "meta"):
        pair = (torch.zeros(s, dtype=torch.uint8, device=device) for s in (blocks, scales))
        with pytest.raises(ValueError, match="do not go with scales"):
            decode(*pair, torch.float32)
