"""Two versions of the engine side by side: what an edit changed is named, with how much it matters."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from conformance.difference import changed_bits, row_differences
from conformance.golden import REPOSITORY_GOLDENS
from conformance.since import revision
from conformance.since.compare import EngineDiff, Version, compare, compare_with
from conformance.since.terminal import print_diff
from engine.errors import LockstepError, RequestError

ROOT = Path(__file__).parents[2]
TARGETS = [str(REPOSITORY_GOLDENS / name) for name in ("llama-tied", "text-gpt2")]
LAYERS, LOADED = "engine/layers.py", "engine/generate/loaded.py"
BPE = "engine/tokenizer/models/bpe.py"

Edit = tuple[str, str, str]
Edited = Callable[..., Path]


@pytest.fixture
def edited(tmp_path: Path) -> Edited:
    """`edited((file, old, new), ...)` is a folder with the engine so changed."""

    def edit(*edits: Edit) -> Path:
        folder = tmp_path / "edited"
        shutil.copytree(ROOT / "engine", folder / "engine")
        for name, old, new in edits:
            file = folder / name
            source = file.read_text()
            assert source.count(old) == 1
            file.write_text(source.replace(old, new))
        return folder

    return edit


def against_this(folder: Path) -> EngineDiff:
    return compare(Version("this", ROOT), Version("edited", folder), TARGETS)


def shown(diff: EngineDiff) -> str:
    console = Console(width=120, file=StringIO())
    print_diff(diff, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_refactoring_is_shown_to_change_no_bit(edited: Edited) -> None:
    diff = against_this(edited((LAYERS, "wide.square().mean", "(wide * wide).mean")))
    assert (diff.verdict, diff.exit_status) == ("bit-identical", 0)
    assert {(c.candidate, c.schedule) for c in diff.comparisons} == {
        (f"engine ({backend})", schedule)
        for backend in ("eager", "sdpa")
        for schedule in ("whole", "chunks of 5")
    }
    assert all(c.probes > 30 for c in diff.comparisons)
    assert sum(a.count for a in diff.answers) > 400
    assert "bit-identical: " in shown(diff).splitlines()[-1]


def test_sums_in_another_order_are_within_the_noise_and_named(edited: Edited) -> None:
    diff = against_this(edited((LAYERS, "wide.square().mean", "wide.square().flip(-1).mean")))
    assert (diff.verdict, diff.exit_status) == ("within noise", 0)
    norms = {"pre_attn_norm", "pre_mlp_norm", "final_norm"}
    named = {change.operation for c in diff.comparisons for change in c.changes}
    assert named and named <= norms, "in lockstep nothing else differs"
    changed = next(change for c in diff.comparisons for change in c.changes)
    assert changed.rows > 0
    assert 0 < changed.share <= 1
    assert changed.place is not None and changed.place.startswith("engine/layers.py:")
    downstream = {change.operation for c in diff.comparisons for change in c.downstream}
    assert downstream - norms, "the free run differs further on"
    assert "changed  " in shown(diff)


def test_faults_are_outside_each_under_its_own_name(edited: Edited) -> None:
    """A wrong eps, a probe that is gone and a merge too few, in one edit."""
    diff = against_this(
        edited(
            (LAYERS, "keepdim=True) + self.eps", "keepdim=True) + 2 * self.eps"),
            (
                LAYERS,
                "self.act(self.activation(self.gate(x)) * self.up(x))",
                "self.activation(self.gate(x)) * self.up(x)",
            ),
            (BPE, "while ranks and (rank", "while ranks[1:] and (rank"),
        )
    )
    assert (diff.verdict, diff.exit_status) == ("differs", 1)
    for comparison in diff.comparisons:
        found = {change.operation: change for change in comparison.changes}
        assert found.pop("mlp.act").problem == "has vanished"
        # Without the probe before it, down starts from the engine's own value and not the golden's.
        assert found.pop("mlp.down").within
        assert set(found) == {"pre_attn_norm", "pre_mlp_norm", "final_norm"}
        norm = found["pre_attn_norm"]
        assert norm.probe == "layers.0.pre_attn_norm"
        assert norm.share > 1 and not norm.within
    stages = {f.stage for a in diff.answers if a.what == "tokenizer" for f in a.changed}
    assert "tokenizer.merge" in stages
    assert "tokenizer.split" not in stages
    document = json.loads(json.dumps(diff.to_json()))
    assert document["verdict"] == "differs"
    assert document["comparisons"][0]["changes"][0]["operation"] == "pre_attn_norm"
    text = shown(diff)
    assert "first at layers.0.mlp.act: has vanished" in text
    assert text.splitlines()[-1].startswith("differs: ")


def test_an_edit_that_raises_differs_where_it_stopped(edited: Edited) -> None:
    diff = against_this(edited((LAYERS, "wide * torch.rsqrt(", "wide * torch.rsqrd(")))
    assert diff.exit_status == 1
    (change,) = diff.comparisons[0].changes
    assert change.probe == "layers.0.pre_attn_norm"
    assert change.problem is not None
    assert change.problem.startswith("is not reached any more: AttributeError")


def test_an_old_engine_with_another_interface_is_one_sentence(edited: Edited) -> None:
    """It cannot be compared, and must not read as a difference."""
    old = edited((LOADED, "class LoadedModel:", "class Loaded:"))
    with pytest.raises(LockstepError) as error:
        compare(Version("v1", old), Version("this", ROOT), TARGETS[:1])
    assert "cannot run the engine of v1" in str(error.value)
    assert "cannot import name 'LoadedModel'" in str(error.value)


def test_an_old_engine_that_raises_is_no_difference_either(edited: Edited) -> None:
    old = edited((LAYERS, "wide * torch.rsqrt(", "wide * torch.rsqrd("))
    with pytest.raises(LockstepError, match="the engine of v1 cannot run llama-tied: Attribute"):
        compare(Version("v1", old), Version("this", ROOT), TARGETS[:1])


@pytest.mark.parametrize(
    ("after", "rows", "largest"),
    [
        ([[1.0, -4.0], [0.0, 0.0]], 0, 0.0),
        ([[1.0, -3.0], [0.0, 0.0]], 1, 0.25),
        ([[1.0, -4.0], [-0.0, 0.0]], 1, 0.0),
        ([[1.0, torch.nan], [0.0, 0.0]], 1, torch.inf),
        ([[1.0, -torch.inf], [0.0, 0.0]], 1, torch.inf),
    ],
)
def test_rows_differ_by_bits_and_by_the_rows_scale(
    after: list[list[float]], rows: int, largest: float
) -> None:
    """A zero's sign is a bit, and no difference; a new NaN is more than any allowance."""
    before = torch.tensor([[1.0, -4.0], [0.0, 0.0]])
    assert int(changed_bits(before, torch.tensor(after)).any(-1).sum()) == rows
    assert float(row_differences(before, torch.tensor(after)).max()) == largest


def test_masked_places_that_stay_masked_do_not_differ() -> None:
    masked = torch.tensor([[2.0, -torch.inf]])
    assert float(row_differences(masked, torch.tensor([[3.0, -torch.inf]])).max()) == 0.5
    assert float(row_differences(masked, torch.tensor([[2.0, 0.0]])).max()) == torch.inf


# -- git -----------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with an engine of one line, since edited, in the place of this one."""
    folder = tmp_path / "repository"
    (folder / "engine").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "engine" / "decoder.py").write_text("committed\n")
    git(folder, "add", "engine")
    git(folder, "commit", "--quiet", "-m", "first")
    (folder / "engine" / "decoder.py").write_text("edited\n")
    monkeypatch.setattr(revision, "ROOT", folder)
    return folder


def test_a_revision_is_taken_from_git_and_not_from_the_disk(
    repository: Path, tmp_path: Path
) -> None:
    commit = revision.check_out("HEAD", tmp_path / "out")
    assert len(commit) == 40
    assert (tmp_path / "out" / "engine" / "decoder.py").read_text() == "committed\n"
    assert (repository / "engine" / "decoder.py").read_text() == "edited\n"


@pytest.mark.parametrize("name", ["nonsense", "HEAD~1", "--output=x", "", "HEAD:engine"])
def test_a_revision_that_git_does_not_know_is_refused(
    repository: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(RequestError, match="git knows no revision"):
        revision.check_out(name, tmp_path / "out")


def test_a_revision_before_the_engine_is_refused(repository: Path, tmp_path: Path) -> None:
    git(repository, "rm", "-r", "--cached", "--quiet", "engine")
    git(repository, "commit", "--quiet", "-m", "no engine")
    with pytest.raises(RequestError, match="there is no engine at revision 'HEAD'"):
        revision.check_out("HEAD", tmp_path / "out")


def test_what_is_no_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(RequestError, match="--since needs a git checkout"):
        compare_with("HEAD")


def test_a_machine_without_git_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LockstepError, match="--since needs git, and there is none"):
        compare_with("HEAD")


def test_a_target_that_is_no_golden_is_refused() -> None:
    here = Version("this", ROOT)
    with pytest.raises(RequestError, match="'nonsense' is no folder of any"):
        compare(here, here, ["nonsense"])
    with pytest.raises(RequestError, match="no dtype 'float8'"):
        compare(here, here, dtype="float8")


def test_the_command_compares_the_working_tree_with_head_where_no_revision_is_named() -> None:
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse"], capture_output=True).returncode:
        pytest.skip("this is no git checkout")
    done = subprocess.run(
        [sys.executable, "-m", "conformance", "check", "llama-tied", "--json", "-", "--since"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    document = json.loads(done.stdout)
    assert document["before"].startswith("HEAD (")
    assert document["after"] == "the working tree"
    # Whoever runs this may be in the middle of an edit.
    assert done.returncode == (1 if document["verdict"] == "differs" else 0)
