"""The published strength of a probe is where its allowance is reached, and grows with the noise."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from conformance import power
from conformance.candidate import operation
from conformance.envelope import Envelope, Noise
from conformance.golden import Golden
from conformance.power import FAULTS, print_power
from conformance.tally import MEASURED

PROBE = "layers.1.mlp.up"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_a_fault_is_noticed_from_its_allowance_on(golden: Golden, fault: str, noise: float) -> None:
    """Without noise in the values, the smallest fault is the allowance, up to one step of the search."""
    allowed = Envelope("lockstep", 0.0, {PROBE: Noise(noise, noise, noise, rows=1)})
    truth = golden.truth(PROBE, 0, golden.schedule[0])
    found = power._smallest(golden, allowed, PROBE, [truth] * 8, FAULTS[fault])
    assert 2 * noise <= found <= 2 * noise * power._STEP


def test_every_probe_kind_of_fault_and_dtype_is_measured(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "TRIALS", 3)
    measured = power.measure(["llama-tied"], lambda _: None)
    tied = Golden(golden.folder.parent / "llama-tied")
    found = {(s.probe, s.dtype, s.fault): s.smallest for s in measured.strengths}
    assert set(found) == {
        (probe, dtype, fault)
        for probe in tied.manifest["probes"]
        for dtype in MEASURED
        for fault in FAULTS
    }
    for probe in tied.manifest["probes"]:
        for fault in FAULTS:
            assert 0 < found[probe, "float32", fault] < found[probe, "bfloat16", fault] < 1
    text = io.StringIO()
    print_power(measured, Console(file=text, width=80))
    for name in {operation(probe) for probe in tied.manifest["probes"]}:
        assert f"\n{name} " in text.getvalue()
    assert len(measured.to_json()) == len(found)
