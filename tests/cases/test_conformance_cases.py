"""Public cases of the theme conformance: I01, I02, I04, I05, I08."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conformance.candidate import Level, Tap
from conformance.cases import CASES
from conformance.check import run_check
from conformance.envelope import half_step
from conformance.generation import answer
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, write_manifest
from conformance.oracle import model as oracle
from conformance.oracle.truth import Float64
from conformance.verdict import Trial, trial
from conformance.verification import VerifyReport, compare
from engine import Engine
from engine.errors import ModelFileError
from engine.layers import RMSNorm
from tests.conformance.replay import Replay

TINY = REPOSITORY_GOLDENS / "llama-gqa"
NAMES = [case.name for case in CASES]
EAGER_ALONE = ("gemma2", "gemma2-untied", "gpt-oss*")  # sdpa knows no softcaps and no sinks


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden(TINY)


def judged(golden: Golden, change: Callable[[str, Tensor], Tensor | None]) -> Trial:
    return trial(Replay(golden, change), golden, torch.float32)


# -- I01: the last of transformers' hidden states is after the final norm --------------------------


def test_i01_the_last_layers_raw_output_and_the_final_norm_are_two_probes(golden: Golden) -> None:
    """Comparing hidden_states one by one with layers' outputs reports a fault where none is."""
    model = oracle.load(TINY, torch.float64)
    with Float64(), torch.no_grad():
        entries = [
            entry[0] for entry in model(golden.ids[None], output_hidden_states=True).hidden_states
        ]
    n = model.config.num_hidden_layers
    truth = {p: golden.truth(p, 0, len(golden.ids)) for p in golden.probes(Level.L4)}
    assert len(entries) == n + 1
    torch.testing.assert_close(entries[0], truth["embed"])
    for i in range(n - 1):
        torch.testing.assert_close(entries[i + 1], truth[f"layers.{i}.out"])
    torch.testing.assert_close(entries[-1], truth["final_norm"])
    torch.testing.assert_close(entries[-1] @ model.lm_head.weight.T, truth["logits"])
    assert not torch.allclose(entries[-1], truth[f"layers.{n - 1}.out"], rtol=0.1)


def test_i01_a_normed_tensor_in_the_place_of_the_raw_one_is_blamed(golden: Golden) -> None:
    last = "layers.2.out"

    def normed(probe: str, value: Tensor) -> Tensor:
        return value / value.square().mean(-1, keepdim=True).sqrt() if probe == last else value

    assert [c.finding.probe for c in judged(golden, normed).culprits] == [last]


# -- I02: the reference's kernel and dtype are pinned, and its noise is measured -------------------


@pytest.mark.parametrize("name", NAMES)
def test_i02_an_allowance_is_a_small_multiple_of_measured_noise(name: str) -> None:
    """A tolerance that was widened until a test went green has room for the fault, too."""
    golden = Golden(REPOSITORY_GOLDENS / name)
    assert golden.manifest["truth"] == "float64, eager attention, cpu"
    assert "plain" in golden.manifest["ensemble"]
    eager_alone = any(fnmatch(name, pattern) for pattern in EAGER_ALONE)
    assert ("attention=sdpa" in golden.manifest["ensemble"]) != eager_alone
    for dtype in map(torch_dtype, golden.manifest["dtypes"]):
        for run in ("lockstep", "free"):
            envelope = golden.envelope(run, dtype)
            assert envelope.floor == half_step(dtype)
            for probe, noise in envelope.noise.items():
                assert noise.rows > 0
                assert noise.largest <= envelope.allowance(probe)
                assert envelope.allowance(probe) <= 3 * noise.largest + envelope.floor


def torch_dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def test_i02_a_fault_that_bfloat16_would_hide_is_judged_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: forward(self, x) * (1 + 1e-4))
    report = run_check([str(TINY)])
    assert report.environment["dtype"] == "float32"
    blamed = {c.finding.probe.split(".")[-1] for t in report.trials for c in t.culprits}
    assert blamed == {"pre_attn_norm", "pre_mlp_norm", "final_norm"}
    assert run_check([str(TINY)], dtype="bfloat16").trials[0].culprits == ()


# -- I04: the dtype is always asked for, and looked at on both sides -------------------------------

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def test_i04_the_stored_checkpoint_is_bfloat16() -> None:
    assert {t.dtype for t in load_file(TINY / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_i04_the_reference_has_the_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    model = oracle.load(TINY, dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    frequencies = {b.dtype for name, b in model.named_buffers() if name.endswith("inv_freq")}
    assert frequencies <= {torch.float32, torch.float64}


def test_i04_a_reference_in_the_checkpoints_own_dtype_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers 5 takes the checkpoint's dtype where none arrives: no golden may come of that."""
    load = oracle.AutoModelForCausalLM.from_pretrained

    def forgetful(dtype: torch.dtype, **where: Any) -> Any:
        return load(**where)

    monkeypatch.setattr(oracle.AutoModelForCausalLM, "from_pretrained", forgetful)
    with pytest.raises(RuntimeError, match=r"was asked for torch.float32 and has .*bfloat16"):
        oracle.load(TINY, torch.float32)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_i04_the_engine_takes_the_dtype_asked_for_whatever_the_config_says(
    tmp_path: Path, key: str, dtype: torch.dtype
) -> None:
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype")}
    (folder / "config.json").write_text(json.dumps(config | {key: "bfloat16"}))
    engine = Engine.load(folder, dtype=str(dtype).removeprefix("torch."))
    assert {p.dtype for p in engine.decoder.parameters()} == {dtype}


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_i04_a_candidate_in_another_dtype_fails_as_such(golden: Golden, dtype: torch.dtype) -> None:
    result = trial(Replay(golden, dtype=dtype), golden, torch.float32)
    assert not result.conforms
    assert f"is {dtype}, the run is torch.float32" in str(result.culprits[0])


# -- I05: a golden knows what made it, and is called stale -----------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_i05_a_golden_stores_all_that_it_depends_on(name: str) -> None:
    manifest = read_manifest(REPOSITORY_GOLDENS / name)
    assert {"transformers", "torch", "tokenizers", "python"} <= manifest["versions"].keys()
    assert {"config.json", "model.safetensors", "noise.json"} <= manifest["files"].keys()
    assert all(len(digest) == 64 for digest in manifest["files"].values())
    assert manifest["dtypes"] and manifest["ids"] and "seed" in manifest
    for dtype in map(torch_dtype, manifest["dtypes"]):
        noise = Golden(REPOSITORY_GOLDENS / name).envelope("lockstep", dtype).noise
        assert set(manifest["probes"]) <= set(noise)


@pytest.mark.parametrize(
    ("package", "version"), [("transformers", "4.0.0"), ("torch", "1.0"), ("tokenizers", "0.1")]
)
def test_i05_a_golden_of_other_versions_is_stale_and_says_so(
    tmp_path: Path, package: str, version: str
) -> None:
    stored = Path(shutil.copytree(TINY, tmp_path / TINY.name))
    manifest = read_manifest(stored)
    running = manifest["versions"][package]
    write_manifest(stored, manifest | {"versions": manifest["versions"] | {package: version}})
    found = compare(stored, TINY)
    said = f"golden is stale: made with {package} {version}, running {package} {running}"
    assert found.status == "stale"
    assert said in found.sentence
    assert "lockstep golden capture llama-gqa" in str(found.advice)
    assert VerifyReport((found,)).exit_status == 0


def test_i05_a_golden_of_another_seed_has_moved(tmp_path: Path) -> None:
    stored = Path(shutil.copytree(TINY, tmp_path / TINY.name))
    write_manifest(stored, read_manifest(stored) | {"seed": 99})
    found = compare(stored, TINY)
    assert [str(move) for move in found.moves] == ["seed  is 1, was 99"]
    assert VerifyReport((found,)).exit_status == 1


def test_i05_other_weights_are_no_divergence_of_the_engine(tmp_path: Path) -> None:
    """Status 1 would send the reader to look for a fault in the engine."""
    stored = Path(shutil.copytree(TINY, tmp_path / TINY.name))
    other = (REPOSITORY_GOLDENS / "llama-tied" / "model.safetensors").read_bytes()
    (stored / "model.safetensors").write_bytes(other)
    with pytest.raises(ModelFileError, match=r"model.safetensors was altered.*golden capture"):
        run_check([str(stored)])


# -- I08: nothing is trimmed to a common size ------------------------------------------------------


def test_i08_a_wider_vocabulary_fails_with_both_shapes(golden: Golden) -> None:
    def wider(probe: str, value: Tensor) -> Tensor:
        return torch.cat([value, value[..., :5]], -1) if probe == "logits" else value

    (culprit,) = judged(golden, wider).culprits
    assert culprit.finding.probe == "logits"
    assert "has the shape (1, 21, 72), the reference (1, 21, 67)" in str(culprit)


@pytest.mark.parametrize("n", [-2, 2])
def test_i08_an_answer_of_another_length_fails_with_both(golden: Golden, n: int) -> None:
    """Token by token, ten right ones of twelve look like success."""
    expected = golden.ids[golden.schedule[0] :].tolist()

    class Talking(Replay):
        def greedy(self, ids: list[int], max_tokens: int) -> list[int]:
            return expected[:n] if n < 0 else [*expected, *expected[:n]]

    envelope = golden.envelope("free", torch.float32)
    (finding,) = answer(Talking(golden), golden, envelope, Level.L5).findings
    assert finding.expected == expected
    assert len(finding.got) == len(expected) + n


def test_i08_one_more_layer_and_one_fewer_both_fail(golden: Golden) -> None:
    class Deeper(Replay):
        def step(self, ids: Tensor, tap: Tap) -> None:
            super().step(ids, tap)
            tap("layers.3.out", torch.zeros(1, len(ids), 40))

    deeper = trial(Deeper(golden), golden, torch.float32)
    assert [c.finding.probe for c in deeper.culprits] == ["layers.3.out"]
    shallower = judged(golden, lambda p, v: None if p.startswith("layers.2.") else v)
    missing = {c.finding.probe for c in shallower.culprits}
    assert {p for p in golden.probes(Level.L5) if p.startswith("layers.2.")} == missing
    assert not deeper.conforms and not shallower.conforms
