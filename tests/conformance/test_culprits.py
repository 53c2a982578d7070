"""Faults in the real engine: named with layer, operation, position and line, and proved by a graft."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS
from engine.attention import Attention
from engine.decoder import Block
from engine.layers import RMSNorm

ROOT = REPOSITORY_GOLDENS.parent


def check_a_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance", "check", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project's code and its goldens, free to be broken."""
    for part in ("engine", "conformance", "golden"):
        ignored = shutil.ignore_patterns("__pycache__", "smollm2-135m")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    return tmp_path


def test_a_fault_made_by_hand_in_rope_is_named_with_its_place(checkout: Path) -> None:
    """What an engineer sees who edits rope.py and runs the check."""
    source = checkout / "engine" / "rope.py"
    text = source.read_text()
    right, wrong = "positions.float()[..., None]", "(positions.float() * 1.001)[..., None]"
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    result = check_a_copy(checkout, "--golden", "golden/llama-gqa", "--json", "-")
    assert result.returncode == 1, result.stderr
    report = json.loads(result.stdout)
    assert report["verdict"] == "diverges"
    assert {c["probe"].split(".", 2)[-1] for c in report["culprits"]} == {
        "attn.q_rope",
        "attn.k_rope",
    }
    assert {c["layer"] for c in report["culprits"]} == {0, 1, 2}
    lines = source.read_text().splitlines()
    for culprit in report["culprits"]:
        assert culprit["file"] == "engine/rope.py"
        assert "def forward" in lines[culprit["line"] - 1]
        assert culprit["position"] > 0, "position 0 is not rotated: no error can be there"
        assert culprit["head"] is not None
        assert culprit["error"] > culprit["allowance"] > 0
        assert culprit["graft_confirms"] is True


def test_the_same_fault_on_the_terminal_names_the_culprit_and_exits_with_1(checkout: Path) -> None:
    source = checkout / "engine" / "decoder.py"
    text = source.read_text()
    source.write_text(
        text.replace("self.out(x + self.post_mlp_norm(", "self.out(x - self.post_mlp_norm(")
    )
    result = check_a_copy(checkout, "--golden", "golden/llama-tied")
    assert result.returncode == 1
    assert "culprit  layers.0.out" in result.stdout
    line = next(
        n for n, t in enumerate(text.splitlines(), 1) if "self.out(x + self.post_mlp_norm(" in t
    )
    assert f"engine/decoder.py:{line}" in result.stdout
    assert result.stdout.rstrip().endswith("diverges")
    assert "Traceback" not in result.stderr


def test_a_flipped_byte_exits_with_2_and_one_sentence(checkout: Path) -> None:
    trace = checkout / "golden" / "llama-gqa" / "trace.safetensors"
    damaged = bytearray(trace.read_bytes())
    damaged[-1] ^= 1
    trace.write_bytes(damaged)
    result = check_a_copy(checkout, "--golden", "golden/llama-gqa")
    assert result.returncode == 2
    assert "trace.safetensors was altered" in result.stderr
    assert result.stderr.count("Traceback") == 0


def test_two_overlapping_faults_are_both_blamed_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A free run cannot tell them apart: the first error is in every tensor behind it."""
    norm, attend = RMSNorm.forward, Attention.__init__

    def shifted_norm(self: RMSNorm, x: torch.Tensor) -> torch.Tensor:
        return norm(self, x) * 1.001

    def doubled_scale(self: Attention, *arguments: Any) -> None:
        attend(self, *arguments)
        self.scale *= 2

    monkeypatch.setattr(RMSNorm, "forward", shifted_norm)
    monkeypatch.setattr(Attention, "__init__", doubled_scale)
    report = run_check(golden=REPOSITORY_GOLDENS / "llama-gqa")
    eager = report.trials[0]
    blamed = {c.finding.probe.split(".", 2)[-1] for c in eager.culprits}
    assert blamed == {"pre_attn_norm", "pre_mlp_norm", "attn.scores", "final_norm"}
    assert all(c.graft_confirms for c in eager.culprits)
    assert {f.probe for f in eager.propagated} >= {"logits", "layers.2.out"}


def test_a_fault_between_two_probes_is_blamed_on_what_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the residual stream is spoilt between two layers, where no operation ends."""
    forward = Block.forward

    def nudged(self: Block, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return forward(self, x, *rest) * 1.01

    monkeypatch.setattr(Block, "forward", nudged)
    report = run_check(golden=REPOSITORY_GOLDENS / "llama-gqa")
    blamed = {c.finding.probe for c in report.trials[0].culprits}
    # A norm of a scaled vector is nearly the same: only eps gives it away.
    assert blamed >= {"layers.1.after_attn", "layers.2.after_attn"}
    assert "layers.0.after_attn" not in blamed
