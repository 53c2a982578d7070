"""`lockstep check` and `lockstep golden`: documents, and a status that says the verdict."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import TINY, Call, is_one_sentence


def test_check_conforms_with_status_0(call: Call, tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    status, out, _ = call("check", "--golden", TINY, "--json", report, "--html", page)
    assert status == 0
    assert "conforms" in out
    document = json.loads(report.read_text(encoding="utf-8"))
    assert document["verdict"] == "conforms"
    assert document["cases"]
    assert document["culprits"] == []
    assert document["environment"]["dtype"] == "float32"
    assert "conforms" in page.read_text(encoding="utf-8")
    assert sorted(tmp_path.iterdir()) == [page, report]


def test_check_diverges_with_status_1_and_names_the_operation(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.layers.RMSNorm.forward", lambda self, x: x)
    status, out, _ = call("check", "--golden", TINY, "--json", "-")
    document = json.loads(out)
    assert status == 1
    assert document["verdict"] == "diverges"
    fields = "case step probe layer position head error allowance file line graft_confirms"
    blamed = set()
    for culprit in document["culprits"]:
        assert set(fields.split()) <= set(culprit)
        blamed.add(culprit["probe"].split(".")[-1])
    assert blamed == {"pre_attn_norm", "pre_mlp_norm", "final_norm"}


def test_one_backend_is_judged_where_it_can_form_the_scores(call: Call) -> None:
    """What it lacks is skipped by name: neither a divergence nor an error."""
    softcaps = TINY.parent / "gemma2"
    status, out, _err = call("check", TINY, softcaps, "--backend", "flash", "--level", "L4")
    assert status == 0
    assert "engine (flash), whole prompt" in out and "engine (flash), chunks of 5" in out
    assert "skipped  gemma2: the attention backend flash has no softcap, which" in out
    assert not any(line.startswith("gemma2") for line in out.splitlines())


def test_a_trial_by_tied_tokens_alone_is_no_success(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was judged: neither a divergence nor status 0."""
    every = lambda golden, *_: frozenset(range(len(golden.ids)))  # noqa: E731
    monkeypatch.setattr("conformance.golden.Golden.expert_ties", every)
    status, out, err = call("check", TINY.parent / "mixtral", "--level", "L3")
    assert status == 2
    assert "all tokens' experts are a tie" in out + err


def test_a_folder_of_goldens_is_all_of_them(call: Call, tmp_path: Path) -> None:
    for name in (TINY.name, "gpt2"):
        shutil.copytree(TINY.parent / name, tmp_path / name)
    status, out, _ = call("check", tmp_path, "--level", "L3", "--json", "-")
    assert status == 0
    assert {case["case"] for case in json.loads(out)["cases"]} == {TINY.name, "gpt2"}


def test_a_golden_that_was_made_without_the_dtype_is_skipped_by_name(
    call: Call, tmp_path: Path
) -> None:
    for name in (TINY.name, "gpt2"):
        shutil.copytree(TINY.parent / name, tmp_path / name)
    noise = tmp_path / "gpt2" / "noise.json"
    table = json.loads(noise.read_text(encoding="utf-8"))
    del table["float16"]
    noise.write_text(json.dumps(table), encoding="utf-8")
    manifest = noise.with_name("manifest.json")
    document = json.loads(manifest.read_text(encoding="utf-8"))
    document["files"]["noise.json"] = hashlib.sha256(noise.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(document), encoding="utf-8")
    status, out, _ = call("check", tmp_path, "--level", "L3", "--dtype", "float16")
    assert status == 0
    assert "skipped  gpt2 has no noise for float16 (it has float32, bfloat16)" in out
    status, _, err = call("check", tmp_path / "gpt2", "--dtype", "float16")
    assert status == 2 and is_one_sentence(err)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--backend", "flashy"], "no attention backend 'flashy'; there are eager, tiled, sdpa"),
        (["--backend", "flash", "--candidate", "a:b"], "--backend is of this engine and does not"),
        (["--backend", "flash", "--since", "HEAD"], "--backend does not go with --since"),
    ],
)
def test_a_backend_that_cannot_be_judged_is_one_sentence(
    call: Call, more: list[str], sentence: str
) -> None:
    status, out, err = call("check", TINY, *more)
    assert (status, out) == (2, "")
    assert is_one_sentence(err) and sentence in err


def test_an_altered_golden_is_status_2_and_named(call: Call, tmp_path: Path) -> None:
    """Neither a pass nor a divergence: the yardstick itself is broken."""
    copy = tmp_path / TINY.name
    shutil.copytree(TINY, copy)
    trace = bytearray((copy / "trace.safetensors").read_bytes())
    trace[-1] ^= 1
    (copy / "trace.safetensors").write_bytes(trace)
    status, out, err = call("check", "--golden", copy)
    assert (status, out) == (2, "")
    assert is_one_sentence(err)
    assert "trace.safetensors" in err


def test_golden_list_names_every_case(call: Call) -> None:
    status, out, err = call("golden", "list")
    assert (status, err) == (0, "")
    headings, *lines = out.splitlines()
    assert headings.split()[:2] == ["golden", "kind"]
    assert all(len(line) <= 80 for line in lines)
    listed = {line.split()[0] for line in lines}
    assert listed == {path.name for path in TINY.parent.iterdir() if path.is_dir()}
