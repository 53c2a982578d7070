"""A failure in a folder of its own: as small as shows it, red while the fault is there, green without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from safetensors.torch import load_file

from conformance.capsule import Capsule, Packer
from conformance.capsule.cut import one_group, one_layer, write
from conformance.capsule.draft import LIMIT
from conformance.capsule.failure import Schedule, failure_of, shortest
from conformance.check import run_check
from conformance.engine_candidate import candidates
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, write_manifest
from conformance.judgement import Finding
from conformance.mutants.run import CATALOGUE, planted
from conformance.verdict import Trial, trial
from engine.device import DTYPES
from engine.errors import LockstepError, ModelFileError, RequestError

ROOT = REPOSITORY_GOLDENS.parent
GOLDEN = "llama-gqa"  # 27 tokens in 7 steps, 3 layers, 4 heads in 2 groups

_PACK = """
import sys
from pathlib import Path
from conformance.capsule import Packer
from conformance.check import run_check
packer = Packer(Path(sys.argv[2]))
run_check([sys.argv[1]], packer=packer)
print(packer.says)
"""
_REPLAY = """
import sys
import pytest
sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider"]))
"""


def installed(folder: Path, mutant: str) -> Path:
    """A folder with the packages alone, as an installation has them, and a fault in the engine."""
    for package in ("engine", "conformance"):
        shutil.copytree(ROOT / package, folder / package)
    (fault,) = [m for m in CATALOGUE if m.id == mutant]
    (folder / fault.file).write_text(planted(fault), encoding="utf-8")
    return folder


def run(site: Path, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a script on the packages in `site`, with no golden in reach."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def packed(folder: Path, maker: str, golden: str = GOLDEN, **options: Any) -> dict[str, Any]:
    """What is said of the capsule that a check of the broken candidate makes."""
    packer = Packer(folder)
    target = str(REPOSITORY_GOLDENS / golden)
    report = run_check(
        [target], candidate=f"tests.conformance.broken:{maker}", packer=packer, **options
    )
    assert not report.conforms
    assert packer.says.startswith("capsule  "), packer.says
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size <= LIMIT
    about: dict[str, Any] = json.loads((folder / "capsule.json").read_text())
    return about


def mended(folder: Path) -> list[str]:
    return Capsule(folder).failures("tests.conformance.broken:sound")


@pytest.mark.parametrize(
    ("mutant", "golden", "schedule", "heads"),
    [
        ("rope-sign", "llama-gqa", [2], [4, 2]),  # position 0 is not turned
        ("mask-one-ahead", "llama-gqa", [2], [4, 2]),
        ("kv-heads-tiled", "llama-gqa", [1], None),  # one group alone does not show it
        ("cache-not-advanced", "llama-gqa", [1, 1], [4, 2]),
        ("head-not-tied", "llama-tied", [1], None),
        ("final-norm-skipped", "llama-bias", [1], None),
    ],
)
def test_a_capsule_of_a_mutant_is_red_far_from_its_golden_and_green_on_the_sound_engine(
    tmp_path: Path,
    mutant: str,
    golden: str,
    schedule: list[int],
    heads: list[int] | None,
) -> None:
    folder = tmp_path / "capsule"
    site = installed(tmp_path / "site", mutant)
    made = run(site, _PACK, REPOSITORY_GOLDENS / golden, folder)
    assert made.stdout.startswith("capsule  "), made.stdout + made.stderr
    about = json.loads((folder / "capsule.json").read_text())
    assert about["schedule"] == schedule
    assert about["cut"]["heads"] == heads
    assert about["cut"]["tokens"] == [27, sum(schedule)]
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= LIMIT
    red = run(site, _REPLAY, folder)
    assert red.returncode == 1, red.stdout + red.stderr
    assert f"culprit  {about['probe_here']}" in red.stdout
    assert Capsule(folder).failures() == []


@pytest.mark.parametrize(
    ("mutant", "golden", "stage", "left"),
    [
        ("tok-merge-longest", "text-gpt2", "tokenizer.merge", 1),
        ("greedy-least-likely", "decisions", "sampling.greedy", 0),
    ],
)
def test_a_capsule_of_a_stage_keeps_the_fewest_texts_or_questions(
    tmp_path: Path, mutant: str, golden: str, stage: str, left: int
) -> None:
    folder = tmp_path / "capsule"
    site = installed(tmp_path / "site", mutant)
    made = run(site, _PACK, REPOSITORY_GOLDENS / golden, folder)
    assert made.stdout.startswith("capsule  "), made.stdout + made.stderr
    about = json.loads((folder / "capsule.json").read_text())
    assert about["stage"] == stage
    assert about["cut"]["texts"][1] == left
    red = run(site, _REPLAY, folder)
    assert red.returncode == 1, red.stdout + red.stderr
    assert stage in red.stdout
    assert Capsule(folder).failures() == []


def test_a_fault_far_into_the_text_keeps_the_tokens_before_it(tmp_path: Path) -> None:
    about = packed(tmp_path / "c", "late")
    assert about["schedule"] == [14]
    assert about["cut"]["layers"] == [3, 1]
    assert about["probe"] == "layers.0.attn.context"
    assert Capsule(tmp_path / "c").failures()
    assert mended(tmp_path / "c") == []


def test_a_fault_that_needs_room_in_the_cache_keeps_some(tmp_path: Path) -> None:
    """A cache as large as the tokens fed would hide it."""
    about = packed(tmp_path / "c", "roomy")
    assert about["schedule"] == [1]
    assert about["cut"]["tokens"] == [27, 2]
    assert Capsule(tmp_path / "c").failures()
    assert mended(tmp_path / "c") == []


def test_values_that_are_not_finite_are_wrong_values_like_others() -> None:
    """What stands in memory that nobody filled is a number in one run and NaN in the next."""
    wrong, nan, shape, other = (
        Finding("cache.layers.0.k", 1, problem=problem)
        for problem in (None, "is not finite, first at position 3", "has the shape (1, 2)", "is x")
    )
    for found, again, same in [(wrong, nan, True), (nan, wrong, True), (shape, other, False)]:
        first, second = (
            SimpleNamespace(culprits=[SimpleNamespace(finding=f)], propagated=[], disagreements=[])
            for f in (found, again)
        )
        assert failure_of(cast("Trial", first)).shown_by(cast("Trial", second)) == same


def test_a_fault_of_decode_steps_keeps_two_steps(tmp_path: Path) -> None:
    about = packed(tmp_path / "c", "decoding")
    assert about["schedule"] == [1, 1]
    assert mended(tmp_path / "c") == []


def test_layers_are_kept_where_one_alone_does_not_show_the_fault(tmp_path: Path) -> None:
    """A fault bound to a layer's number must not become a capsule that is green."""
    about = packed(tmp_path / "c", "one_layer")
    assert about["cut"]["layers"] == [3, 3]
    assert about["probe_here"] == "layers.1.mlp.up"
    assert [line.split()[1] for line in Capsule(tmp_path / "c").failures()] == ["layers.1.mlp.up"]
    assert mended(tmp_path / "c") == []


def test_what_a_shallow_candidate_shows_is_packed_without_a_culprit(tmp_path: Path) -> None:
    about = packed(tmp_path / "c", "shallow")
    assert about["failure"].startswith("outside  logits")
    assert about["schedule"] == [1]
    assert mended(tmp_path / "c") == []


def test_an_answer_that_differs_keeps_the_shortest_prompt_with_a_known_answer(
    tmp_path: Path,
) -> None:
    about = packed(tmp_path / "c", "deaf")
    assert about["kind"] == "generation"
    assert about["expected"] != about["got"]
    before, after = about["cut"]["tokens"]
    assert after < before
    assert mended(tmp_path / "c") == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_capsule_in_a_narrow_dtype_rounds_as_the_run_did(tmp_path: Path, dtype: str) -> None:
    packed(tmp_path / "c", "late", dtype=dtype)
    assert Capsule(tmp_path / "c").failures()
    assert mended(tmp_path / "c") == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "probe", ["embed", "layers.1.attn.context", "layers.2.out", "final_norm", "logits"]
)
def test_one_layer_alone_is_green_on_the_sound_engine(
    tmp_path: Path, probe: str, dtype: str
) -> None:
    """Were the table of inputs wrong, or the truth that of another layer, all of it would be red."""
    whole = Golden(REPOSITORY_GOLDENS / GOLDEN)
    cut = one_layer(whole, 9, probe)
    if probe.endswith(".context"):
        cut = one_group(whole, cut, probe, head=2)
    write(cut, whole, whole.folder, dtype, tmp_path, {"prompt_tokens": 7})
    small = Golden(tmp_path)
    assert len(small.manifest["probes"]) == len(cut.probes) == len(small.trace)
    for candidate in candidates(tmp_path, "cpu", dtype):
        result = trial(candidate, small, DTYPES[dtype])
        assert result.conforms, str(result)


def test_the_evidence_is_the_failing_step(tmp_path: Path) -> None:
    packed(tmp_path / "c", "late")
    evidence = load_file(tmp_path / "c" / "evidence.safetensors")
    off = (evidence["got"] - evidence["expected"]).abs().amax(-1)
    assert off.argmax(-1).tolist() == [13] * 4
    assert float(off[:, :13].max()) < 1e-5 < float(off[:, 13].min())


def test_a_capsule_is_a_target_of_the_check(tmp_path: Path) -> None:
    packed(tmp_path / "c", "late")
    assert run_check([str(tmp_path / "c")]).exit_status == 1
    report = run_check([str(tmp_path / "c")], candidate="tests.conformance.broken:sound")
    assert report.exit_status == 0
    assert [t.case for t in report.trials] == [GOLDEN]


def test_nothing_is_written_where_nothing_fails(tmp_path: Path) -> None:
    packer = Packer(tmp_path / "c")
    run_check([str(REPOSITORY_GOLDENS / GOLDEN)], packer=packer)
    assert not (tmp_path / "c").exists()
    assert packer.says == "nothing diverges: no capsule was written"


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(RequestError, match="not an empty folder; name a new one"):
        Packer(tmp_path)


def test_a_damaged_capsule_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    packed(tmp_path / "c", "late")
    (tmp_path / "c" / "golden" / "noise.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"noise\.json was altered"):
        Capsule(tmp_path / "c")
    (tmp_path / "c" / "capsule.json").write_text("{}")
    with pytest.raises(ModelFileError, match="is no capsule that this version reads"):
        Capsule(tmp_path / "c")


def test_weights_that_are_not_here_are_an_error_that_says_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(tmp_path / "c", "one_layer")
    manifest = read_manifest(tmp_path / "c" / "golden")
    del manifest["files"], manifest["format"]
    write_manifest(tmp_path / "c" / "golden", manifest | {"checkpoint": "smollm2-135m"})
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "empty"))
    with pytest.raises(LockstepError, match="get it with: lockstep fetch smollm2-135m"):
        Capsule(tmp_path / "c").failures()


@pytest.mark.parametrize(
    ("original", "shows", "expected"),
    [
        ((21, 1, 1), lambda s: True, (1,)),
        ((21, 1, 1), lambda s: len(s) > 1, (1, 1)),
        ((21, 1, 1), lambda s: max(s) > 1, (2,)),
        ((21, 1, 1), lambda s: sum(s) >= 9, (9,)),
        ((21, 1, 1), lambda s: sum(s) >= 22 and len(s) > 1, (21, 1)),
        ((5, 5, 5, 1), lambda s: s[1:2] == (5,), (5, 5)),
        ((5, 5, 5, 1), lambda s: sum(s) == 16 and len(s) == 4, (5, 5, 5, 1)),
    ],
)
def test_the_search_finds_the_fewest_tokens_in_the_fewest_steps(
    original: Schedule, shows: Any, expected: Schedule
) -> None:
    assert shortest(original, shows) == expected
