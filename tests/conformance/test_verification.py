"""A golden made again: what moved is named with its size, staleness is said, and nothing is overwritten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from conformance import goldens
from conformance.golden import REPOSITORY_GOLDENS, Golden, read_manifest, sha256, write_manifest
from conformance.process import Say
from conformance.verification import SHOWN, VerifyReport, compare, print_verification

CASE, TEXT = "llama-tied", "text-gpt2"
COMMITTED = REPOSITORY_GOLDENS / CASE


@pytest.fixture
def again(tmp_path: Path) -> Path:
    """What the oracle makes today: at first the same."""
    return Path(shutil.copytree(COMMITTED, tmp_path / "again" / CASE))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A committed golden that a test may damage."""
    return Path(shutil.copytree(COMMITTED, tmp_path / "stored" / CASE))


def signed(folder: Path, **changes: Any) -> None:
    """Writes the manifest anew, so that every hash is right."""
    write_manifest(folder, read_manifest(folder) | changes)


def edit_tensors(folder: Path, name: str, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / name)
    edit(tensors)
    save_file(tensors, folder / name)
    signed(folder)


def edit_json(folder: Path, name: str, edit: Callable[[Any], None]) -> None:
    value = json.loads((folder / name).read_text())
    edit(value)
    (folder / name).write_text(json.dumps(value))
    signed(folder)


def shown(report: VerifyReport) -> str:
    console = Console(width=120, file=StringIO())
    print_verification(report, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def later(folder: Path) -> dict[str, str]:
    return read_manifest(folder)["versions"] | {"transformers": "99.0.0"}


def test_the_same_golden_is_bit_identical(again: Path) -> None:
    found = compare(COMMITTED, again)
    assert (found.status, found.moves, found.advice) == ("bit-identical", (), None)
    assert VerifyReport((found,)).exit_status == 0


def test_probes_beyond_their_noise_are_named_worst_first_with_how_far(again: Path) -> None:
    golden = Golden(COMMITTED)
    allowed = golden.envelope("free", torch.float32).noise

    def move(trace: dict[str, torch.Tensor]) -> None:
        for probe, part in (("embed", 3.0), ("layers.1.out", 1e4), ("final_norm", 1e-3)):
            row = trace[probe][0]
            noise = 3 * allowed[probe].largest + torch.finfo(torch.float32).eps / 2
            row[0] += part * noise * row.abs().max()

    edit_tensors(again, "trace.safetensors", move)
    found = compare(COMMITTED, again)
    assert [move.what for move in found.moves] == ["layers.1.out", "embed"]
    assert found.moves[0].share > 1e3
    assert found.moves[1].share == pytest.approx(3.0, rel=1e-3)
    assert (found.status, VerifyReport((found,)).exit_status) == ("moved", 1)
    assert "its versions are the same" in str(found.advice)


def test_a_truth_within_its_noise_is_no_move(again: Path) -> None:
    def move(trace: dict[str, torch.Tensor]) -> None:
        trace["logits"] *= 1 + 1e-12

    edit_tensors(again, "trace.safetensors", move)
    found = compare(COMMITTED, again)
    assert (found.status, found.changed) == ("within noise", ("trace.safetensors",))
    assert VerifyReport((found,)).exit_status == 0


def test_other_versions_make_a_golden_stale_and_do_not_fail_it(again: Path) -> None:
    signed(again, versions=later(again))
    found = compare(COMMITTED, again)
    made = read_manifest(COMMITTED)["versions"]["transformers"]
    sentence = f"golden is stale: made with transformers {made}, running transformers 99.0.0"
    assert found.status == "stale"
    assert sentence in found.sentence
    report = VerifyReport((found,))
    assert report.exit_status == 0
    assert report.to_json()["goldens"][0]["stale"] is True
    text = shown(report)
    assert sentence in text
    assert f"lockstep golden capture {CASE}" in text


def test_another_python_alone_makes_nothing_stale(again: Path) -> None:
    signed(again, versions=read_manifest(again)["versions"] | {"python": "4.0"})
    assert compare(COMMITTED, again).status == "bit-identical"


def test_an_upgrade_that_moves_a_golden_fails_and_says_what_to_do(again: Path) -> None:
    def move(trace: dict[str, torch.Tensor]) -> None:
        for truth in trace.values():
            truth[truth.isfinite()] *= 1.5

    edit_tensors(again, "trace.safetensors", move)
    signed(again, versions=later(again))
    found = compare(COMMITTED, again)
    report = VerifyReport((found,))
    assert (found.status, found.stale, report.exit_status) == ("moved", True, 1)
    assert len(found.moves) == len(Golden(COMMITTED).trace)
    lines = shown(report).splitlines()
    assert sum("its truth moved" in line for line in lines) == SHOWN
    assert any(f"... and {len(found.moves) - SHOWN} more" in line for line in lines)
    assert "release notes" in shown(report)
    document = json.loads(json.dumps(report.to_json()))
    assert document["verdict"] == "moved"
    assert len(document["goldens"][0]["moves"]) == len(found.moves)


@pytest.mark.parametrize(
    ("factor", "says"),
    [(1 / 50, "is now"), (50, "its stored noise in bfloat16, lockstep, largest")],
)
def test_noise_that_was_not_measured_fails_by_name(
    stored: Path, again: Path, factor: float, says: str
) -> None:
    """Inflated noise lets faults pass, deflated noise blames the innocent; either is an edit by hand."""

    def edit(table: Any) -> None:
        table["bfloat16"]["lockstep"]["layers.0.mlp.down"][0] *= factor

    edit_json(stored, "noise.json", edit)
    found = compare(stored, again)
    (move,) = found.moves
    assert move.what == "layers.0.mlp.down"
    assert says in move.how
    assert move.share > 1
    assert VerifyReport((found,)).exit_status == 1


def test_noise_of_another_machine_is_no_edit(stored: Path, again: Path) -> None:
    def edit(table: Any) -> None:
        for runs in table.values():
            for probes in runs.values():
                for row in probes.values():
                    row[0] *= 1.5

    edit_json(stored, "noise.json", edit)
    assert compare(stored, again).status == "within noise"


def test_a_version_in_a_config_is_no_change_of_the_model(again: Path) -> None:
    edit_json(again, "config.json", lambda config: config.update(transformers_version="99.0.0"))
    assert compare(COMMITTED, again).status == "within noise"
    edit_json(again, "config.json", lambda config: config.update(rms_norm_eps=0.5))
    (move,) = compare(COMMITTED, again).moves
    assert str(move) == "config.json, rms_norm_eps  is 0.5, was 0.01"


def test_other_weights_ids_and_shapes_are_named(again: Path) -> None:
    def widen(trace: dict[str, torch.Tensor]) -> None:
        trace["logits"] = torch.nn.functional.pad(trace["logits"], (0, 1))
        del trace["embed"]

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"][0] += 1

    edit_tensors(again, "trace.safetensors", widen)
    edit_tensors(again, "model.safetensors", spoil)
    signed(again, ids=[*read_manifest(again)["ids"][:-1], 0], seed=99)
    moved = {move.what: move.how for move in compare(COMMITTED, again).moves}
    assert set(moved) == {"logits", "embed", "model.norm.weight", "ids", "seed"}
    assert "has the shape" in moved["logits"]
    assert moved["embed"] == "is not there any more"


def test_the_samples_of_a_stage_that_moved_are_named(tmp_path: Path) -> None:
    again = Path(shutil.copytree(REPOSITORY_GOLDENS / TEXT, tmp_path / TEXT))

    def edit(answers: Any) -> None:
        for sample in answers["texts"][2:7]:
            sample["merge"][0][1] = [0]
        answers["chats"][0]["rendered"] += "!"

    edit_json(again, "text.json", edit)
    moves = {move.what: move.how for move in compare(REPOSITORY_GOLDENS / TEXT, again).moves}
    assert set(moves) == {"tokenizer.merge", "tokenizer.chat"}
    assert moves["tokenizer.merge"].startswith('moved in 5 samples: "The unhappy others')
    assert moves["tokenizer.merge"].endswith(" and 2 more")
    assert moves["tokenizer.chat"].startswith("moved in 1 sample: ")


def test_verify_leaves_the_committed_goldens_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A golden that rolls forward by itself proves nothing; only `capture` writes."""
    places = []

    def capture(names: Sequence[str], out: Path | None, say: Say) -> list[Path]:
        assert out is not None
        places.append(out)
        (name,) = names
        made = Path(shutil.copytree(REPOSITORY_GOLDENS / name, out / name))
        edit_tensors(made, "trace.safetensors", lambda trace: trace["logits"].mul_(2))
        return [made]

    def hashes() -> dict[str, str]:
        return {p.name: sha256(p) for p in COMMITTED.iterdir()}

    before = hashes()
    monkeypatch.setattr(goldens, "capture", capture)
    report = goldens.verify([CASE], lambda _: None)
    assert report.exit_status == 1
    assert hashes() == before
    assert not any(place.is_relative_to(REPOSITORY_GOLDENS) for place in places)
