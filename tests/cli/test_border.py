"""What the command line refuses, and how it ends: a status and one sentence, whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from engine.cli import parse_ids
from engine.command import atomically, check_writable, json_text, run, save_tensors
from engine.errors import LockstepError, RequestError
from tests.cli.command_line import ROOT, Call, is_one_sentence


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nonsense"], "nonsense"),
        (["generate"], "MODEL"),
        (["generate", "m", "p", "--nonsense"], "--nonsense"),
        (["generate", "m", "p", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "m", "p", "--max-tokens", "0"], "max_tokens"),
        (["generate", "m", "p", "--temperature", "-1"], "temperature"),
        (["generate", "m", "p", "--temperature", "nan"], "temperature"),
        (["generate", "m", "p", "--top-p", "1.5"], "top_p"),
        (["generate", "m", "p", "--stop", ""], "stop"),
        (["generate", "m", "p", "--min-tokens", "65"], "min_tokens"),
        (["generate", "m", "p", "--logit-bias", "11"], "ID=VALUE"),
        (["generate", "m", "p", "--logit-bias", "1,2=3"], "ID=VALUE"),
        (["generate", "m", "p", "--logit-bias", "11=much"], "ID=VALUE"),
        (["generate", "m", "p", "--logit-bias", "11=nan"], "logit_bias"),
        (["generate", "m", "p", "--stop-token-id", "x"], "--stop-token-id"),
        (["generate", "m", "p", "--repetition-penalty", "0"], "repetition_penalty"),
        (["generate", "m", "p", "-n", "0"], "n must be"),
        (["generate", "m", "p", "-n", "3", "--best-of", "2"], "best_of"),
        (["generate", "m", "p", "--logprobs", "1"], "--json"),
        (["generate", "m", "p", "--logprobs", "-1", "--json"], "logprobs"),
        (["generate", "m", "p", "--logprobs-mode", "cooked", "--json"], "logprobs_mode"),
        (["generate", "m", "p", "--regex", "a", "--choice", "b"], "--regex and --choice"),
        (["generate", "m", "p", "--regex", ""], "a pattern must not be empty"),
        (["generate", "m", "p", "--json-schema", '{"not": {}}'], "'not' at #"),
        (["generate", "m", "p", "--json-schema", "/nowhere/schema.json"], "/nowhere/schema.json"),
        (["generate", "m", "p", "--grammar", "start: <|end|>"], "'<' here"),
        (["generate", "m", "p", "--beams", "1"], "leave beams out"),
        (["generate", "m", "p", "--length-penalty", "2"], "add --beams"),
        (["generate", "m", "p", "--beams", "2", "--prompt-lookup"], "a beam search drafts nothing"),
        (["generate", "m", "p", "--prompt-lookup", "--draft", "m"], "--prompt-lookup or --draft"),
        (["chat", "m", "--typical-p", "2"], "typical_p"),
        (["generate", "/nowhere/model", "p"], "/nowhere/model"),
        (["generate", "m", b"\xff".decode(errors="surrogateescape")], "UTF-8"),
        (["tokenize", "m"], "TEXT"),
        (["tokenize", "m", "text", "--file", "f"], "TEXT"),
        (["tokenize", "m", "--file", "/nowhere/text"], "/nowhere/text"),
        (["tokenize", "/nowhere/model", "text"], "/nowhere/model"),
        (["detokenize", "m"], "ID"),
        (["detokenize", "m", "1,x"], "'x'"),
        (["logits", "m", "--ids", "1"], "--out"),
        (["logits", "m", "--out", "f"], "--ids"),
        (["logits", "m", "--out", "f", "--ids", "1", "--text", "t"], "--ids"),
        (["logits", "m", "--out", "f", "--ids", ","], "1,2,3"),
        (["logits", "m", "--out", "f", "--ids", "1,-2"], "'-2'"),
        (["logits", "m", "--out", "/nowhere/f", "--ids", "1"], "/nowhere"),
        (["trace", "m", "--out", "/", "--ids", "1"], "folder"),
        (["logits", "m", "--out", os.devnull, "--ids", "1"], "a link, a device or a pipe"),
        (["fetch", "nonsense"], "nonsense"),
        (["golden"], "golden"),
        (["golden", "verify", "nonsense"], "nonsense"),
        (["golden", "capture", "nonsense"], "nonsense"),
        (["check", "--golden", "/nowhere/golden"], "/nowhere/golden"),
        (["check", "--json", "/nowhere/report.json"], "/nowhere"),
        (["check", "--level", "L9"], "L9"),
        (["check", "--since", "--level", "L3"], "does not go with --since"),
        (["check", "--since=HEAD", "--candidate", "m:f"], "does not go with --since"),
        (["check", "--dtype", "float8"], "float8"),
        (["check", "--device", "abacus"], "abacus"),
        (["mutants", "--family", "nonsense"], "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_one_sentence_and_status_2(
    call: Call, argv: list[str], says: str
) -> None:
    """Status 1 would read as "diverges", a traceback as a crash of ours."""
    status, out, err = call(*argv)
    assert (status, out) == (2, "")
    assert is_one_sentence(err)
    assert says in err


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (LockstepError("the moon is down"), 2, "error: the moon is down\n"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 2, "error: a.txt: No such"),
        (KeyError("k"), 2, "error: a bug in lockstep, KeyError: 'k'"),
        (RuntimeError("two\nlines"), 2, "error: a bug in lockstep, RuntimeError: two lines"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(1), 1, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_exceptions_become_a_status(
    error: BaseException, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unforeseen exception must not leave with Python's status 1, which means "diverges"."""
    failing = typer.Typer()

    @failing.command()
    def fail() -> None:
        raise error

    assert run(failing, "prog", []) == status
    err = capsys.readouterr().err
    assert err.startswith(says)
    assert err.count("\n") <= 1


COMMANDS = "fetch generate chat tokenize detokenize logits trace memory check golden mutants invariance bench"


@pytest.mark.parametrize(
    ("module", "commands"),
    [
        ("engine", "fetch generate chat tokenize detokenize logits trace memory"),
        ("conformance", COMMANDS),
    ],
)
def test_both_packages_run_from_a_checkout_and_show_help(module: str, commands: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS.split():
        assert (f"│ {command} " in done.stdout) == (command in commands.split())


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently on Windows")
def test_a_reader_that_leaves_is_no_error() -> None:
    """`lockstep ... | head -1` must not end in a BrokenPipeError."""
    code = (
        "import sys, typer; from engine.command import run\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def say():\n"
        "    for _ in range(100_000): print('words')\n"
        "sys.exit(run(app, 'prog', []))"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# -- small parts ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([",", " ", ", ", "\n"]))
def test_ids_are_read_back(ids: list[int], separator: str) -> None:
    assert parse_ids(separator.join(map(str, ids))) == ids


@pytest.mark.parametrize("text", ["", ",", "1.5", "-1", "0x10", "1;2", "1e3", "٣", "²", "9" * 19])
def test_what_is_no_id_is_refused(text: str) -> None:
    """int() would take other scripts' digits, underscores and signs."""
    with pytest.raises(RequestError):
        parse_ids(text)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """A half-written file that looks whole is worse than none."""
    out = tmp_path / "out"
    out.write_text("old")

    def failing_write() -> None:
        with atomically(out) as draft:
            draft.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        failing_write()
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_an_unwritable_target_is_found_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    for bad in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(RequestError):
            check_writable(bad)


def test_a_transposed_tensor_is_saved(tmp_path: Path) -> None:
    """safetensors refuses what is not contiguous, which is no error of the user's."""
    turned = torch.arange(6.0).reshape(2, 3).T
    save_tensors({"a": turned}, tmp_path / "f.safetensors")
    assert load_file(tmp_path / "f.safetensors")["a"].tolist() == turned.tolist()


def test_json_is_utf8_and_standard() -> None:
    """A strict reader refuses Infinity, which an engine gone wrong does produce."""
    assert json_text({"text": "naïve 日本 🙂"}) == '{"text": "naïve 日本 🙂"}'
    document = {"errors": [float("inf"), float("nan"), 1.5], "pair": (1, None)}
    assert json.loads(json_text(document)) == {"errors": ["inf", "nan", 1.5], "pair": [1, None]}
