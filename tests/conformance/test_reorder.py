"""Legal variants change the last bits and nothing else, and the suite does not cry wolf at them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conformance.candidate import Tap
from conformance.engine_candidate import EngineCandidate
from conformance.false_alarms import FalseAlarms
from conformance.golden import Golden
from conformance.reorder import EachPermuted, OtherKernels, Permuted, SplitK, Variant
from conformance.tally import Tally, tally
from conformance.varied_engine import VariedEngine
from conformance.verdict import trial
from engine import Engine


@pytest.mark.parametrize("mode", [Permuted(3), SplitK(4), OtherKernels()])
def test_a_legal_way_to_compute_changes_bits_and_no_more(
    mode: Permuted | SplitK | OtherKernels,
) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 300, generator=draw), torch.randn(70, 300, generator=draw)
    bias = torch.randn(70, generator=draw)

    def everything() -> list[Tensor]:
        return [
            torch.nn.functional.linear(x, weight, bias),
            torch.nn.functional.linear(x, weight),
            x @ weight.T,
            x.square().mean(-1, keepdim=True),
            x.softmax(dim=-1, dtype=torch.float32),
        ]

    plain = everything()
    with mode:
        other = everything()
    for a, b in zip(plain, other, strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    assert not torch.equal(plain[0], other[0])


def test_an_activation_by_other_code_differs_in_its_last_bits() -> None:
    x = 3 * torch.randn(8, 24, generator=torch.Generator().manual_seed(0))
    plain = torch.nn.functional.gelu(x)
    with OtherKernels():
        other = torch.nn.functional.gelu(x)
        strided = torch.nn.functional.gelu(torch.stack((x, x), dim=-1)[..., 0])
    assert torch.equal(strided, plain), "where it was strided it is not"
    assert 0 < (other - plain).abs().max() < 1e-6


def test_the_seed_decides_the_order() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 300, generator=draw), torch.randn(300, 70, generator=draw)

    def product(seed: int) -> Tensor:
        with Permuted(seed):
            return a @ b

    assert torch.equal(product(1), product(1))
    assert not torch.equal(product(1), product(2))


def test_a_wide_weight_is_permuted_in_parts_to_the_bits_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 300, generator=draw), torch.randn(700, 300, generator=draw)
    order = torch.randperm(300, generator=torch.Generator("cpu").manual_seed(1))
    with Permuted(1):
        product = torch.nn.functional.linear(x, weight)
    assert torch.equal(product, torch.matmul(x[:, order], weight.T[order]))


def test_each_row_of_a_batch_gets_an_order_of_its_own() -> None:
    generator = torch.Generator("cpu").manual_seed(0)
    row, weight = (torch.randn(shape, generator=generator) for shape in ((6, 70), (9, 70)))
    rows = row.expand(8, 6, 70)
    expected = row.double() @ weight.double().T
    with EachPermuted(seed=1):
        batched = torch.nn.functional.linear(rows, weight)
        without_a_batch = torch.nn.functional.linear(rows[:, 0], weight)
        shares = torch.softmax(rows, -1)
    assert torch.allclose(batched.double(), expected.expand(8, 6, 9), atol=1e-4)
    assert torch.allclose(without_a_batch.double(), expected[0].expand(8, 9), atol=1e-4)
    assert torch.allclose(shares, torch.softmax(rows, -1), atol=1e-6)
    assert len({tuple(product[0].tolist()) for product in batched}) > 4
    assert len({tuple(product.tolist()) for product in without_a_batch}) > 4


def test_a_variant_says_what_it_changes_and_puts_the_threads_back() -> None:
    before = torch.get_num_threads()
    variant = Variant(threads=before + 1, permute=5)
    with variant.in_force():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    assert variant.name == f"threads={before + 1}, permute=5"
    assert Variant().name == "plain"


def test_variants_of_a_sound_engine_raise_no_alarm_and_those_of_a_faulty_one_do(
    golden: Golden,
) -> None:
    """The tally must be able to fail, or its zero says nothing."""
    engine = Engine.load(golden.folder)

    class Doubling(VariedEngine):
        def step(self, ids: Tensor, tap: Tap) -> None:
            def doubled(probe: str, value: Tensor) -> Tensor:
                return tap(probe, value * 2 if probe == "layers.1.mlp.act" else value)

            super().step(ids, doubled)

    def sound(_: Golden, dtype: torch.dtype, variant: Variant) -> EngineCandidate:
        return VariedEngine(engine, variant)

    def faulty(_: Golden, dtype: torch.dtype, variant: Variant) -> EngineCandidate:
        return Doubling(engine, variant)

    good = tally("sound", sound, [golden.folder], "float32", 12, 0, lambda _: None)
    bad = tally("faulty", faulty, [golden.folder], "float32", 3, 0, lambda _: None)
    assert (good.variants, good.alarms, good.outside) == (12, 0, ())
    assert good.probes > 12 * len(golden.manifest["probes"])
    assert bad.alarms == 3
    assert any(line.startswith("layers.1.mlp.act") for line in bad.outside)


def test_one_alarm_in_a_thousand_is_kept_as_promised_and_two_are_not() -> None:
    def exit_status(alarms: int) -> int:
        return FalseAlarms(0, (Tally("x", "float32", 1000, alarms, 1, ()),)).exit_status

    assert [exit_status(n) for n in (0, 1, 2)] == [0, 0, 1]


def test_a_batch_of_equal_rows_is_judged_row_by_row(golden: Golden) -> None:
    engine = Engine.load(golden.folder)
    result = trial(EngineCandidate(engine, "sdpa", batch=3), golden, torch.float32)
    alone = trial(EngineCandidate(engine, "sdpa"), golden, torch.float32)
    assert result.conforms
    assert result.rows == 3 * alone.rows
