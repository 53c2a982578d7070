"""A cache of int8 is judged by the half step it promises: what rounds more, or otherwise, is found there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import engine.cache.store as store
from conformance.candidate import Candidate, operation
from conformance.golden import REPOSITORY_GOLDENS, Golden
from conformance.int8_candidate import candidates
from conformance.judgement import judge
from conformance.lockstep import everywhere, walk
from conformance.tapped import Tapped
from conformance.verdict import trial
from engine.cache.store import Int8Store, Place, to_int8

Quantise = Callable[[Tensor], tuple[Tensor, Tensor]]


def blamed(candidate: Candidate, golden: Golden) -> set[str]:
    """The operations outside of their envelope in a lockstep run."""
    allowed = golden.envelope("lockstep", torch.float32).with_cache(candidate.cache_rounding)
    seen = walk(candidate, golden, torch.float32, everywhere).measurements
    return {operation(finding.probe) for finding in judge(seen, allowed, golden).outside}


@pytest.fixture
def candidate(golden: Golden) -> Candidate:
    (made,) = candidates(golden.folder, "cpu", "float32")
    return made


@pytest.mark.parametrize("name", ["llama-bias", "gemma3", "deepseek-v3"])
def test_it_conforms_and_uses_up_its_half_step(name: str) -> None:
    """Grouped heads, windows and latents; were the half step not used, the allowance would be too wide."""
    golden = Golden(REPOSITORY_GOLDENS / name)
    (candidate,) = candidates(golden.folder, "cpu", "float32")
    verdict = trial(candidate, golden, torch.float32, golden.schedule_in(5))
    assert verdict.conforms
    caches = [s for s in verdict.own if s.probe.startswith("cache.")]
    assert caches
    assert all(0.9 < float(s.shares.nan_to_num().max()) <= 1 for s in caches)


def one_scale_for_all_heads(new: Tensor) -> tuple[Tensor, Tensor]:
    scale = new.abs().amax((1, 3), keepdim=True) / 127
    return (new / scale).round().to(torch.int8), scale.expand(*new.shape[:3], 1)


def one_scale_for_all_tokens(new: Tensor) -> tuple[Tensor, Tensor]:
    scale = new.abs().amax((2, 3), keepdim=True) / 127
    return (new / scale).round().to(torch.int8), scale.expand(*new.shape[:3], 1)


def down_to_128(new: Tensor) -> tuple[Tensor, Tensor]:
    scale = new.abs().amax(-1, keepdim=True) / 128
    return (new / scale).round().clamp(-128, 127).to(torch.int8), scale


def cut_off(new: Tensor) -> tuple[Tensor, Tensor]:
    _, scale = to_int8(new)
    return (new / scale).to(torch.int8), scale


def zero_point_lost(new: Tensor) -> tuple[Tensor, Tensor]:
    """From the smallest number to the largest, of which nothing is known when it is read."""
    low, high = new.amin(-1, keepdim=True), new.amax(-1, keepdim=True)
    scale = (high - low) / 255
    return ((new - low) / scale - 128).round().to(torch.int8), scale


def another_tokens_scale(new: Tensor) -> tuple[Tensor, Tensor]:
    numbers, scale = to_int8(new)
    return numbers, scale.roll(1, dims=2)


def coarse_scale(new: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers by one scale, which is kept in fewer bits."""
    numbers, scale = to_int8(new)
    return numbers, scale.bfloat16().float()


@pytest.mark.parametrize(
    "fault",
    [
        one_scale_for_all_heads,
        one_scale_for_all_tokens,
        down_to_128,
        cut_off,
        zero_point_lost,
        another_tokens_scale,
        coarse_scale,
    ],
)
def test_another_quantisation_is_blamed_on_the_cache(
    candidate: Candidate, golden: Golden, monkeypatch: pytest.MonkeyPatch, fault: Quantise
) -> None:
    monkeypatch.setattr(store, "to_int8", fault)
    assert blamed(candidate, golden) == {"cache.k", "cache.v"}


def test_a_wrong_scale_of_values_alone_is_blamed_on_them(
    candidate: Candidate, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hundredth off; values are the second store of each layer that is written."""
    write, calls = Int8Store.write, [0]

    def wrong(self: Int8Store, place: Place, new: Tensor) -> None:
        write(self, place, new)
        calls[0] += 1
        if calls[0] % 2 == 0:
            self.scales.write(place, self.scales.read(place) * 1.01)

    monkeypatch.setattr(Int8Store, "write", wrong)
    assert blamed(candidate, golden) == {"cache.v"}


def test_no_operation_but_the_cache_has_its_allowance(candidate: Candidate, golden: Golden) -> None:
    target = "layers.1.attn.context"
    spoilt = Tapped(candidate, lambda p, value: value * 1.003 if p == target else value)
    assert blamed(spoilt, golden) == {"attn.context"}
