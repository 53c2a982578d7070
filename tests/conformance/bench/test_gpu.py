"""The run for a GPU, tried on the CPU with tiny sizes: parts, budgets, failures, and what is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from conformance.bench import gpu
from conformance.bench.gpu import Done, Part, parts, run_part, run_parts
from conformance.bench.random_llama import SHAPES, config, write_model
from conformance.cli import app
from conformance.process import ROOT
from engine import Engine, SamplingParams


def part(name: str, code: str, document: str | None = None) -> Part:
    """A part of one line of Python."""
    return Part(name, ("timeit", "-n1", "-r1", code), 1, document)


def test_a_dry_run_proves_and_times_and_leaves_both_documents(tmp_path: Path) -> None:
    argv = ["--out", str(tmp_path), "--device", "cpu", "--shape", "tiny", "--goldens", "llama-gqa"]
    argv += ["--parts", "float32,model,bench", "--forms", "eager", "--rounds", "1"]
    assert gpu.main(argv) == 0
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    check, _, bench = found["parts"]
    assert check["document"]["verdict"] == "conforms"
    assert bench["document"]["environment"]["date"]
    assert set(bench["document"]["scenarios"][0]["forms"]) == {"eager"}
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| float32 | passed |" in page
    assert "conforms: 3 runs, 0 culprits" in page
    assert ": bench\n" in page
    assert "| decode, batch 4 | eager |" in page


def test_every_command_of_a_full_run_is_one_that_there_is(tmp_path: Path) -> None:
    """A wrong option would cost a part on the one machine where nobody can try again."""
    command = typer.main.get_command(app)
    every = parts(tmp_path, "cuda", "8b")
    for each in every:
        if each.command[0] == "conformance":
            name, *arguments = each.command[1:]
            sub = command.commands[name]  # type: ignore[attr-defined]
            assert sub.make_context(name, list(arguments)).params
    assert {p.name for p in every} == {
        "float32", "bfloat16", "float16", "flash", "flex", "tiled", "compiled", "tests", "model", "bench", "growth",
    }  # fmt: skip
    named = [word for p in every for word in p.command if word.startswith("tests/")]
    assert named
    assert all((ROOT / word).exists() for word in named)
    [compiled] = [p for p in every if p.name == "compiled"]
    assert all(Path(word).is_dir() for word in compiled.command if "/golden/" in word)


def test_a_part_that_fails_or_takes_too_long_does_not_keep_the_others_from_running(
    tmp_path: Path,
) -> None:
    chosen = [
        part("fails", "raise ValueError('no such kernel')", "fails.json"),
        part("hangs", "import time; time.sleep(60)"),
        part("works", "print('fine')"),
    ]
    failed, hung, worked = run_parts(chosen, tmp_path, minutes=0.04)
    assert failed.outcome == "failed with status 1"
    assert failed.says == "ValueError: no such kernel"
    assert hung.outcome == "out of time"
    assert hung.seconds < 30
    assert worked.outcome == "passed"
    written = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert [each["outcome"] for each in written["parts"]] == [
        failed.outcome,
        hung.outcome,
        worked.outcome,
    ]
    assert "| hangs | out of time |" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_what_a_part_leaves_of_its_time_is_there_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, shares = [0.0], []

    def run(part: Part, out: Path, share: float) -> Done:
        shares.append(share)
        now[0] += 10
        return Done(part.name, "passed", 10, "")

    monkeypatch.setattr(gpu, "run_part", run)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    run_parts([Part("a", (), 1), Part("b", (), 2), Part("c", (), 1)], tmp_path, minutes=2)
    assert shares == pytest.approx([30, 110 * 2 / 3, 100])


def test_half_a_document_is_none(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    done = run_part(part("broken", "pass", "broken.json"), tmp_path, 30)
    assert (done.outcome, done.document) == ("passed", None)


def test_unknown_parts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, says in (
        (["--out", str(tmp_path), "--parts", "benhc"], "no part 'benhc'; there are tests, float32"),
        ([], "--out is missing"),
    ):
        with pytest.raises(SystemExit, match="2"):
            gpu.main(argv)
        assert says in capsys.readouterr().err


def test_a_random_model_is_an_ordinary_one(tmp_path: Path) -> None:
    write_model("tiny", tmp_path, "float32", "cpu")
    answer = Engine.load(tmp_path).generate([1, 2, 3], SamplingParams(max_tokens=4))
    assert len(answer.token_ids) == 4


@pytest.mark.parametrize(("shape", "billions"), [("1b", 1.236), ("3b", 3.213), ("8b", 8.030)])
def test_the_shapes_are_llamas(shape: str, billions: float) -> None:
    """As Meta counts them; weights are drawn nowhere here."""
    said: dict[str, Any] = config(shape, "bfloat16")
    dim, layers, ffn_dim, vocab = (
        said[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    )
    narrow = said["num_key_value_heads"] * said["head_dim"]
    layer = 2 * dim * dim + 2 * dim * narrow + 3 * dim * ffn_dim + 2 * dim
    heads = 1 if said["tie_word_embeddings"] else 2
    assert (heads * vocab * dim + layers * layer + dim) / 1e9 == pytest.approx(billions, abs=1e-3)
    assert shape in SHAPES
