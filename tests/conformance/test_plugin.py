"""pytest as the user's own runner: `pytest --lockstep-model MODEL`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conformance.golden import REPOSITORY_GOLDENS

pytest_plugins = ["pytester"]

GOLDEN = str(REPOSITORY_GOLDENS / "llama-tied")


@pytest.fixture
def runner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of somebody else's, with a test of its own."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY_GOLDENS.parent))
    pytester.makepyfile(test_own="def test_own():\n    assert 1 + 1 == 2")
    return pytester


def run(runner: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    # Loaded by name once, whether or not the distribution is installed.
    return runner.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:lockstep", "-p", "conformance.plugin", "-v", *arguments
    )


def test_a_sound_model_passes_one_test_per_question(runner: pytest.Pytester) -> None:
    result = run(runner, "--lockstep-model", GOLDEN, "--lockstep-golden", GOLDEN)
    result.assert_outcomes(passed=4)
    for name in ("words", "logits", "operations", "cache"):
        result.stdout.fnmatch_lines([f"*{name}*PASSED*"])


def test_named_tests_run_beside_the_model(runner: pytest.Pytester) -> None:
    result = run(runner, "test_own.py", "--lockstep-model", GOLDEN, "--lockstep-golden", GOLDEN)
    result.assert_outcomes(passed=5)


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
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(["*layers.0.pre_attn_norm*engine/layers.py:*confirmed by graft*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_missing_model_is_one_sentence(runner: pytest.Pytester) -> None:
    result = run(runner, "--lockstep-model", "no-such-model", "--lockstep-golden", GOLDEN)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'no-such-model' is no folder*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_golden_without_a_model_is_a_usage_error(runner: pytest.Pytester) -> None:
    result = run(runner, "--lockstep-golden", GOLDEN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lockstep-golden goes with --lockstep-model*"])
