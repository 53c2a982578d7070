"""The command line keeps its contract: documents, exit status, one sentence for every error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from conformance.cli import app
from engine import Engine
from engine.cli import parse_ids
from engine.command import atomically, check_writable, json_text, run, save_tensors
from engine.errors import LockstepError, RequestError
from engine.probe import probes

ROOT = Path(__file__).parents[1]
PROMPT = "The capital of France is"
PROMPT_IDS = [504, 3575, 282, 4649, 314]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line in this process: (exit status, standard output, standard error)."""

    def call(*argv: str | Path) -> tuple[int, str, str]:
        capfd.readouterr()
        status = run(app, "lockstep", [str(part) for part in argv])
        return (status, *capfd.readouterr())

    return call


@pytest.fixture
def smollm2(asset: Callable[[str], Path]) -> Path:
    return asset("smollm2-135m")


def is_one_sentence(err: str) -> bool:
    return err.startswith("error: ") and err.count("\n") == 1 and "Traceback" not in err


# -- the border ----------------------------------------------------------------------------------


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
        (["fetch", "nonsense"], "nonsense"),
        (["golden"], "golden"),
        (["golden", "verify", "nonsense"], "nonsense"),
        (["golden", "capture", "nonsense"], "nonsense"),
        (["check", "--golden", "/nowhere/golden"], "/nowhere/golden"),
        (["check", "--json", "/nowhere/report.json"], "/nowhere"),
        (["check", "--level", "L9"], "L9"),
        (["check", "--dtype", "float8"], "float8"),
        (["check", "--device", "abacus"], "abacus"),
        (["mutants", "--family", "nonsense"], "nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_one_sentence_and_status_2(
    call: Callable[..., tuple[int, str, str]], argv: list[str], says: str
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


COMMANDS = "fetch generate chat tokenize detokenize logits trace check golden mutants"


@pytest.mark.parametrize(
    ("module", "commands"),
    [
        ("engine", "fetch generate chat tokenize detokenize logits trace"),
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


# -- a real model --------------------------------------------------------------------------------


def test_tokenize_documents_ids_tokens_and_offsets(
    call: Callable[..., tuple[int, str, str]], smollm2: Path
) -> None:
    status, out, err = call("tokenize", smollm2, PROMPT, "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["ids"] == PROMPT_IDS
    assert document["tokens"] == ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]
    assert [PROMPT[a:b] for a, b in document["offsets"]] == [
        "The",
        " capital",
        " of",
        " France",
        " is",
    ]


def test_tokenize_reads_a_file_byte_by_byte(
    call: Callable[..., tuple[int, str, str]], smollm2: Path, tmp_path: Path
) -> None:
    """Text mode would turn \\r\\n into \\n, and a final newline belongs to the text."""
    text = "\ufeffone\r\ntwo\rthree\n\n  é\u0000end\n"
    (tmp_path / "text").write_bytes(text.encode())
    status, out, _ = call("tokenize", smollm2, "--file", tmp_path / "text", "--no-special")
    assert status == 0
    status, back, _ = call("detokenize", smollm2, *out.split())
    assert (status, back) == (0, text + "\n")
    (tmp_path / "text").write_bytes(b"ab\xff")
    status, out, err = call("tokenize", smollm2, "--file", tmp_path / "text")
    assert (status, out) == (2, "")
    assert is_one_sentence(err)
    assert "byte 2" in err


def test_detokenize_keeps_or_skips_special_tokens(
    call: Callable[..., tuple[int, str, str]], smollm2: Path
) -> None:
    status, out, _ = call("tokenize", smollm2, "<|im_start|>hi<|im_end|>")
    ids = out.split()
    assert status == 0
    assert json.loads(call("detokenize", smollm2, *ids, "--json")[1]) == {
        "text": "<|im_start|>hi<|im_end|>"
    }
    assert call("detokenize", smollm2, ",".join(ids), "--skip-special") == (0, "hi\n", "")
    status, out, err = call("detokenize", smollm2, "999999999")
    assert (status, out) == (2, "")
    assert is_one_sentence(err)


def test_tokenizer_commands_never_load_torch(smollm2: Path) -> None:
    code = (
        "import sys; from conformance.cli import app; from engine.command import run\n"
        f"run(app, 'lockstep', ['tokenize', {str(smollm2)!r}, 'hi'])\n"
        f"run(app, 'lockstep', ['detokenize', {str(smollm2)!r}, '28'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_generate_prints_one_document_or_just_the_text(
    call: Callable[..., tuple[int, str, str]], smollm2: Path
) -> None:
    status, out, _ = call("generate", smollm2, PROMPT, "--max-tokens", "8", "--json")
    document = json.loads(out)
    assert status == 0
    assert document["text"].startswith(" Paris")
    assert document["prompt_token_ids"] == PROMPT_IDS
    assert len(document["token_ids"]) == 8
    assert document["finish_reason"] == "length"
    assert document["logprobs"] is None
    assert document["usage"]["completion_tokens"] == 8
    assert call("generate", smollm2, PROMPT, "--max-tokens", "8")[1] == document["text"] + "\n"


def test_generate_stops_before_a_stop_text_and_wraps_a_chat(
    call: Callable[..., tuple[int, str, str]], smollm2: Path
) -> None:
    stopped = call("generate", smollm2, PROMPT, "--stop", "zebra", "--stop", "ris", "--json")
    document = json.loads(stopped[1])
    assert document["text"] == " Pa"
    assert document["finish_reason"] == "stop"
    wrapped = call("generate", smollm2, "Hi", "--chat", "--max-tokens", "1", "--json")
    prompt = json.loads(wrapped[1])["prompt_token_ids"]
    shown = call("detokenize", smollm2, *map(str, prompt))[1]
    assert "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" in shown


def test_logits_and_trace_are_written_whole(
    call: Callable[..., tuple[int, str, str]], smollm2: Path, tmp_path: Path
) -> None:
    ids = ",".join(map(str, PROMPT_IDS))
    logits, text, trace = (tmp_path / f"{n}.safetensors" for n in ("logits", "text", "trace"))
    assert call("logits", smollm2, "--ids", ids, "--chunk", "2", "--out", logits)[:2] == (0, "")
    assert call("logits", smollm2, "--text", PROMPT, "--out", text)[:2] == (0, "")
    assert call("trace", smollm2, "--ids", ids, "--out", trace)[:2] == (0, "")
    assert sorted(tmp_path.iterdir()) == sorted([logits, text, trace])

    engine = Engine.load(smollm2, backend="eager")
    whole = load_file(text)
    assert whole["ids"].dtype == torch.int64
    assert whole["ids"].tolist() == PROMPT_IDS
    assert whole["logits"].dtype == torch.float32
    assert torch.equal(whole["logits"], engine.logits(PROMPT_IDS))
    assert torch.equal(load_file(logits)["logits"], engine.logits(PROMPT_IDS, chunk=2))
    names = {f"cache.layers.{i}.{part}" for i in range(30) for part in "kv"}
    assert set(load_file(trace)) == names | set(probes(engine.decoder))


def test_a_failed_command_writes_nothing(
    call: Callable[..., tuple[int, str, str]], smollm2: Path, tmp_path: Path
) -> None:
    for wrong in (["--ids", "999999"], ["--text", "hi", "--chunk", "0"]):
        status, out, err = call("logits", smollm2, *wrong, "--out", tmp_path / "f.safetensors")
        assert (status, out) == (2, "")
        assert is_one_sentence(err)
        assert list(tmp_path.iterdir()) == []


def test_chat_remembers_until_reset(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each turn must send the whole conversation, and /reset only the system message."""
    sent: list[Any] = []
    encode_chat = type(Engine.load(smollm2).tokenizer).encode_chat

    def spy(self: Any, messages: list[dict[str, str]], **extra: Any) -> Any:
        sent.append([(m["role"], m["content"]) for m in messages])
        return encode_chat(self, messages, **extra)

    monkeypatch.setattr("engine.tokenizer.Tokenizer.encode_chat", spy)
    lines = iter(["Hi", "", "And you?", "/reset", "Bye", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    assert (
        run(app, "lockstep", ["chat", str(smollm2), "--system", "Be brief.", "--max-tokens", "3"])
        == 0
    )
    out = capfd.readouterr().out.splitlines()
    first, second, third = out
    system = ("system", "Be brief.")
    assert sent == [
        [system, ("user", "Hi")],
        [system, ("user", "Hi"), ("assistant", first), ("user", "And you?")],
        [system, ("user", "Bye")],
    ]
    assert second
    assert third
