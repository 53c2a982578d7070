"""pytest as the user's own runner: `pytest --lockstep-model MODEL`."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conformance.golden import REPOSITORY_GOLDENS

pytest_plugins = ["pytester"]

GOLDEN = str(REPOSITORY_GOLDENS / "llama-tied")
ON_GOLDEN = ("--lockstep-model", GOLDEN, "--lockstep-golden", GOLDEN)
KINDS = ("words", "logits", "operations", "cache")

#: An engine of somebody else's: this project's, of a level of their own.
MINE = """
from conformance.candidate import Candidate, Level
from conformance.engine_candidate import candidates as engines

class Mine(Candidate):
    name = "mine"
    level = Level.L3
    prefill = (None,)

    def __init__(self, inner):
        self.inner = inner

    def begin(self, capacity):
        self.inner.begin(capacity)

    def step(self, ids, tap):
        self.inner.step(ids, lambda probe, value: tap(probe, self.altered(probe, value)))

    def altered(self, probe, value):
        return value

class Broken(Mine):
    def altered(self, probe, value):
        return value * 1.01 if probe == "logits" else value

class Crashing(Mine):
    def altered(self, probe, value):
        raise RuntimeError("no kernel for this shape")

def sound(model, device, dtype):
    return [Mine(engines(model, device, dtype)[0])]

def broken(model, device, dtype):
    return [Broken(engines(model, device, dtype)[0])]

def crashing(model, device, dtype):
    return [Crashing(engines(model, device, dtype)[0])]

def raising(model, device, dtype):
    raise KeyError("no such kernel")
"""


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else's, with a test and an engine of its own."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY_GOLDENS.parent))
    pytester.makepyfile(test_own="def test_own():\n    assert 1 + 1 == 2", mine=MINE)
    return pytester


def run(runner: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # Loaded by name once, whether or not the distribution is installed.
    return runner.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:lockstep", "-p", "conformance.plugin", "-v", *arguments
    )


def test_a_sound_model_passes_one_test_per_candidate_schedule_and_question(
    runner: pytest.Pytester,
) -> None:
    result = run(runner, *ON_GOLDEN, "--junitxml", "out.xml")
    result.assert_outcomes(passed=8)
    cases = {case.get("name") for case in ET.parse(runner.path / "out.xml").iter("testcase")}  # noqa: S314
    assert cases == {
        f"{candidate}: {kind}"
        for candidate in ("engine (eager), whole prompt", "engine (sdpa), chunks of 5")
        for kind in KINDS
    }
    result.stdout.fnmatch_lines(["*lockstep?llama-tied, cpu, float32?*words*PASSED*"])


def test_named_tests_run_beside_the_model_and_can_be_chosen_from(runner: pytest.Pytester) -> None:
    result = run(runner, "test_own.py", *ON_GOLDEN, "-k", "own or eager and cache")
    result.assert_outcomes(passed=2, deselected=7)


def test_without_the_option_nothing_is_added(runner: pytest.Pytester) -> None:
    run(runner).assert_outcomes(passed=1)


def test_a_divergence_fails_with_the_operation_and_no_traceback(
    runner: pytest.Pytester, tmp_path: Path
) -> None:
    """Another eps in the config is a fault in the norms alone."""
    model = tmp_path / "model"
    shutil.copytree(GOLDEN, model)
    config = model / "config.json"
    text = config.read_text()
    assert '"rms_norm_eps": 0.01' in text
    config.write_text(text.replace('"rms_norm_eps": 0.01', '"rms_norm_eps": 0.02'))
    result = run(runner, "--lockstep-model", str(model), "--lockstep-golden", GOLDEN)
    result.assert_outcomes(failed=6, passed=2)
    result.stdout.fnmatch_lines(["*layers.0.pre_attn_norm*engine/layers.py:*confirmed by graft*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_another_engine_is_judged_and_what_it_does_not_show_is_skipped(
    runner: pytest.Pytester,
) -> None:
    result = run(runner, *ON_GOLDEN, "--lockstep-candidate", "mine:sound", "-rs")
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*mine is of level L3: no operations, cache"])


@pytest.mark.parametrize(
    ("factory", "failed", "says"),
    [
        ("broken", 1, "*logits*in the free run*"),
        ("crashing", 1, "*RuntimeError: no kernel for this shape*"),
    ],
)
def test_a_broken_engine_fails_where_it_is_broken(
    runner: pytest.Pytester, factory: str, failed: int, says: str
) -> None:
    result = run(runner, *ON_GOLDEN, "--lockstep-candidate", f"mine:{factory}", "-k", "logits")
    result.assert_outcomes(failed=failed, deselected=3)
    result.stdout.fnmatch_lines([says])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_factory_that_raises_is_an_error_and_no_failure(runner: pytest.Pytester) -> None:
    result = run(
        runner, *ON_GOLDEN, "--lockstep-candidate", "mine:raising", "--junitxml", "out.xml"
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*raising made no candidate of *KeyError: 'no such kernel'*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert list(ET.parse(runner.path / "out.xml").iter("error"))  # noqa: S314


@pytest.mark.parametrize("name", ["mine:nothing", "nobody:candidates", "nonsense"])
def test_a_name_that_is_no_factory_is_a_usage_error(runner: pytest.Pytester, name: str) -> None:
    result = run(runner, *ON_GOLDEN, "--lockstep-candidate", name)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{name}*"])


def test_a_missing_model_is_one_sentence(runner: pytest.Pytester) -> None:
    result = run(runner, "--lockstep-model", "no-such-model", "--lockstep-golden", GOLDEN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*'no-such-model' is no folder*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("option", ["--lockstep-golden", "--lockstep-candidate"])
def test_an_option_without_a_model_is_a_usage_error(runner: pytest.Pytester, option: str) -> None:
    result = run(runner, option, GOLDEN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option} goes with --lockstep-model*"])


def test_a_golden_is_made_once_and_kept_by_its_content(
    runner: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made at the first need with progress that is seen; other weights have another golden."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("LOCKSTEP_CACHE", str(cache))
    model = tmp_path / "mine"
    model.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(GOLDEN) / name, model / name)
    arguments = ("--lockstep-model", str(model), "-k", "eager and logits")
    first = run(runner, *arguments)
    first.assert_outcomes(passed=1, deselected=7)
    first.stderr.fnmatch_lines(["oracle: truth in float64"])
    (folder,) = (path for path in (cache / "goldens").iterdir() if path.is_dir())
    assert (folder / "manifest.json").is_file()
    (folder / "noise.json").write_text("{}")  # damaged: made again, not believed
    second = run(runner, *arguments)
    second.assert_outcomes(passed=1, deselected=7)
    second.stderr.fnmatch_lines(["oracle: truth in float64"])
    third = run(runner, *arguments)
    third.assert_outcomes(passed=1, deselected=7)
    third.stderr.no_fnmatch_line("oracle: *")
