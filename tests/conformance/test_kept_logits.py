"""Goldens of large vocabularies keep the logits of some tokens: what is kept is judged as if all were there."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from conformance.check import run_check
from conformance.engine_candidate import EngineCandidate, candidates
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, write_manifest
from conformance.judgement import disagreements
from conformance.lockstep import Choice
from conformance.tapped import Tapped
from conformance.verdict import Trial, trial

BEST = 2


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """A tiny model's golden, thinned to the best two logits of each position."""
    folder = tmp_path_factory.mktemp("goldens") / "thin"
    shutil.copytree(REPOSITORY_GOLDENS / "llama-gqa", folder)
    trace = load_file(folder / "trace.safetensors")
    logits = trace["logits"]
    kept = logits.topk(BEST).indices.flatten().unique()
    assert len(kept) < logits.shape[-1]
    trace["logits"] = logits[:, kept].contiguous()
    save_file(trace, folder / "trace.safetensors")
    manifest = read_manifest(folder) | {
        "vocabulary": kept.tolist(),
        "vocabulary_size": logits.shape[-1],
        "logsumexp": logits.logsumexp(-1).tolist(),
    }
    write_manifest(folder, manifest)
    return Golden(folder)


def judged(golden: Golden, fault: Callable[[Tensor], Tensor]) -> Trial:
    """A trial of the engine with something done to its logits."""

    def before(probe: str, value: Tensor) -> Tensor:
        return fault(value.clone()) if probe == "logits" else value

    engine: EngineCandidate = candidates(golden.folder, "cpu", "float32")[0]
    return trial(Tapped(engine, before), golden, torch.float32)


@pytest.mark.parametrize("level", ["L1", "L2", "L3", "L5"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_engine_conforms_at_every_level(golden: Golden, level: str, dtype: str) -> None:
    report = run_check([str(golden.folder)], level=level, dtype=dtype)
    assert report.conforms
    assert level == "L1" or all(t.probes for t in report.trials)


def test_a_wrong_logit_of_a_kept_token_is_a_culprit(golden: Golden) -> None:
    token = golden.manifest["vocabulary"][3]

    def fault(logits: Tensor) -> Tensor:
        logits[..., token] += 1e-2
        return logits

    assert [c.finding.probe for c in judged(golden, fault).culprits] == ["logits"]


def test_log_probabilities_are_of_the_whole_vocabulary(golden: Golden) -> None:
    n, kept = len(golden.ids), torch.tensor(golden.manifest["vocabulary"])
    whole = Golden(REPOSITORY_GOLDENS / "llama-gqa").truth("logprobs", 0, n)
    torch.testing.assert_close(golden.truth("logprobs", 0, n), whole[:, kept], rtol=0, atol=1e-9)


def test_logits_of_another_vocabulary_are_of_the_wrong_shape(golden: Golden) -> None:
    outcome = judged(golden, lambda logits: logits[..., :-1])
    assert "has the shape" in str(outcome.culprits[0].finding.problem)


def test_a_token_that_is_not_kept_is_no_tie(golden: Golden) -> None:
    kept = golden.manifest["vocabulary"]
    unkept = next(token for token in range(golden.manifest["vocabulary_size"]) if token not in kept)
    envelope = golden.envelope("free", torch.float32)
    best = int(golden.truth("next_id", 4, 5))
    (found,) = disagreements([Choice(4, unkept, best)], golden, envelope)
    assert not found.is_tie
    (known,) = disagreements([Choice(4, kept[0], best)], golden, envelope)
    whole = Golden(REPOSITORY_GOLDENS / "llama-gqa").truth("logits", 4, 5)[0]
    scale = float(golden.truth("logits", 4, 5).abs().max())
    assert known.margin == pytest.approx(float(whole[best] - whole[kept[0]]) / scale, rel=1e-9)
