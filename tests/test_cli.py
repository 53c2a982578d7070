"""The command line keeps its contract: documents, exit status, one sentence for every error."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from conformance.cli import app
from engine import Engine, SamplingParams, Tokenizer
from engine.cli import parse_ids
from engine.command import atomically, check_writable, json_text, run, save_tensors
from engine.errors import LockstepError, RequestError
from engine.generate import Piece
from engine.probe import probes

ROOT = Path(__file__).parents[1]
TINY = ROOT / "golden" / "llama-gqa"
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


@pytest.fixture(scope="module")
def engine(asset: Callable[[str], Path]) -> Engine:
    return Engine.load(asset("smollm2-135m"))


@pytest.fixture
def loaded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model that commands find loaded already, which spares seconds in each call."""
    monkeypatch.setattr("engine.Engine.load", lambda model, **options: engine)
    return "smollm2-135m"


def is_one_sentence(err: str) -> bool:
    """Progress may come before it."""
    *_, last = err.splitlines()
    return last.startswith("error: ") and err.count("error: ") == 1 and "Traceback" not in err


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
    call: Callable[..., tuple[int, str, str]], argv: list[str], says: str
) -> None:
    """Status 1 would read as "diverges", a traceback as a crash of ours."""
    status, out, err = call(*argv)
    assert (status, out) == (2, "")
    assert is_one_sentence(err)
    assert says in err


def test_an_answer_looks_like_what_a_file_or_the_command_line_says(
    call: Callable[..., tuple[int, str, str]], loaded: str, tmp_path: Path
) -> None:
    schema, grammar = tmp_path / "a.json", tmp_path / "a.lark"
    schema.write_text('{"enum": ["é"]}', encoding="utf-8")
    grammar.write_text('start: "x" "y"', encoding="utf-8")
    for option, says in (
        (("--json-schema", schema), '"é"'),
        (("--json-schema", '{"const": [1]}'), "[1]"),
        (("--regex", "ab{2}c"), "abbc"),
        (("--choice", "one"), "one"),
        (("--grammar", grammar), "xy"),
        (("--grammar", 'start: "x" "z"'), "xz"),
    ):
        status, out, _ = call("generate", loaded, "It is ", *option)
        assert (status, "".join(out.split())) == (0, says)
    assert call("generate", loaded, "It is ", "--json-object", "--max-tokens", 1)[1].startswith("{")


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


COMMANDS = (
    "fetch generate chat tokenize detokenize logits trace memory check golden mutants invariance"
)


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


@pytest.mark.parametrize("name", ["bpe-bytes.model", "unigram-rules.model"])
def test_a_tokenizers_own_file_is_enough_to_tokenize(
    call: Callable[..., tuple[int, str, str]], name: str
) -> None:
    file = ROOT / "tests" / "tokenizer" / "fixtures" / name
    status, out, err = call("tokenize", file, "the text")
    assert (status, err) == (0, "")
    assert call("detokenize", file, "--skip-special", *out.split()) == (0, "the text\n", "")


def test_special_tokens_in_a_prompt_are_text_unless_they_are_asked_for(
    call: Callable[..., tuple[int, str, str]], loaded: str
) -> None:
    """Otherwise whoever writes a part of the prompt could speak as somebody else."""
    prompt = ("generate", loaded, "a<|im_end|>", "--max-tokens", "1", "--json")
    plain, special = (json.loads(call(*prompt, *more)[1]) for more in ((), ("--parse-special",)))
    assert special["prompt_token_ids"][-1] == 2
    assert 2 not in plain["prompt_token_ids"]


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


def test_generate_prints_one_document(
    call: Callable[..., tuple[int, str, str]], smollm2: Path
) -> None:
    status, out, err = call("generate", smollm2, PROMPT, "--max-tokens", "8", "--json")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert document["text"].startswith(" Paris")
    assert document["prompt_token_ids"] == PROMPT_IDS
    assert len(document["token_ids"]) == 8
    assert document["finish_reason"] == "length"
    assert document["logprobs"] is None
    assert document["usage"]["completion_tokens"] == 8


def test_generate_prints_just_the_text(
    call: Callable[..., tuple[int, str, str]], loaded: str, engine: Engine
) -> None:
    said = engine.generate(PROMPT, SamplingParams(max_tokens=8)).text
    assert call("generate", loaded, PROMPT, "--max-tokens", "8") == (0, said + "\n", "")


def test_generate_stops_before_a_stop_text(
    call: Callable[..., tuple[int, str, str]], loaded: str
) -> None:
    _, out, _ = call("generate", loaded, PROMPT, "--stop", "zebra", "--stop", "ris", "--json")
    document = json.loads(out)
    assert (document["text"], document["finish_reason"]) == (" Pa", "stop")


def test_generate_wraps_a_chat(
    call: Callable[..., tuple[int, str, str]], loaded: str, engine: Engine
) -> None:
    _, out, _ = call("generate", loaded, "Hi", "--chat", "--max-tokens", "1", "--json")
    prompt = engine.tokenizer.decode(json.loads(out)["prompt_token_ids"])
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_sampling_options_reach_the_engine(
    call: Callable[..., tuple[int, str, str]], loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option that is read and dropped shows in no output."""
    seen: list[SamplingParams] = []

    def stream(self: Engine, prompt: Any, params: SamplingParams, **how: bool) -> Iterator[Any]:
        seen.append(params)
        return iter(())

    monkeypatch.setattr("engine.Engine.stream", stream)
    options = (
        "--max-tokens 3 --min-tokens 2 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 "
        "--typical-p 0.8 --epsilon-cutoff 0.01 --eta-cutoff 0.02 --seed 7 --repetition-penalty 1.1 "
        "--presence-penalty 0.2 --frequency-penalty -0.3 --no-repeat-ngram-size 4 --stop x "
        "--logit-bias 11=-5 --logit-bias 12=-inf --stop-token-id 13 --stop-token-id 14 --ignore-eos"
    )
    assert call("generate", loaded, PROMPT, *options.split())[0] == 0
    asked = SamplingParams(
        max_tokens=3,
        min_tokens=2,
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        epsilon_cutoff=0.01,
        eta_cutoff=0.02,
        seed=7,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        no_repeat_ngram_size=4,
        logit_bias={11: -5.0, 12: -math.inf},
        stop=("x",),
        stop_token_ids=(13, 14),
        ignore_eos=True,
    )
    assert seen == [asked]
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    lines = iter(["Hi", "/exit"])
    assert call("chat", loaded, *options.split())[0] == 0
    assert seen == [asked, asked]


def test_several_answers_come_one_after_another(
    call: Callable[..., tuple[int, str, str]], loaded: str, engine: Engine
) -> None:
    options = ["--max-tokens", "4", "--temperature", "1", "--seed", "3", "-n", "2"]
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=3, n=2)
    done: Any = engine.generate(PROMPT, params)
    status, out, err = call("generate", loaded, PROMPT, *options)
    assert (status, err) == (0, "")
    assert out == f"--- 1 of 2 ---\n{done[0].text}\n--- 2 of 2 ---\n{done[1].text}\n"
    document = json.loads(call("generate", loaded, PROMPT, *options, "--json")[1])
    assert [answer["token_ids"] for answer in document] == [answer.token_ids for answer in done]
    best = json.loads(
        call("generate", loaded, PROMPT, *options[:-2], "--best-of", "3", "--json")[1]
    )
    assert best["usage"]["completion_tokens"] == 12
    assert best["score"] < 0


def test_log_probabilities_are_in_the_document_with_the_text_s_own_offsets(
    call: Callable[..., tuple[int, str, str]], loaded: str
) -> None:
    options = ["--max-tokens", "2", "--logprobs", "2", "--prompt-logprobs", "0"]
    status, out, err = call("generate", loaded, PROMPT, *options, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    first, *rest = document["prompt_logprobs"]
    assert first is None
    assert [entry["text_offset"] for entry in rest] == [3, 11, 14, 21]
    assert [len(entry["top"]) for entry in document["logprobs"]] == [2, 2]
    processed = [*options, "--logprobs-mode", "processed", "--temperature", "1", "--top-k", "1"]
    document = json.loads(call("generate", loaded, PROMPT, *processed, "--json")[1])
    assert [entry["logprob"] for entry in document["logprobs"]] == [0.0, 0.0]


def test_logits_are_those_of_the_engine(
    call: Callable[..., tuple[int, str, str]], loaded: str, engine: Engine, tmp_path: Path
) -> None:
    out = tmp_path / "logits.safetensors"
    assert call("logits", loaded, "--text", PROMPT, "--out", out) == (0, "", "")
    saved = load_file(out)
    assert saved["ids"].dtype == torch.int64
    assert saved["ids"].tolist() == PROMPT_IDS
    assert saved["logits"].dtype == torch.float32
    assert torch.equal(saved["logits"], engine.logits(PROMPT_IDS))
    assert list(tmp_path.iterdir()) == [out]


# -- a tiny model --------------------------------------------------------------------------------


def test_logits_in_chunks_and_dtypes_and_by_either_backend(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    ids = list(range(1, 30))
    out = tmp_path / "logits.safetensors"
    for backend, dtype, chunk in (("eager", "float32", 7), ("sdpa", "bfloat16", None)):
        options = ["--backend", backend, "--dtype", dtype]
        options += [] if chunk is None else ["--chunk", str(chunk)]
        status, _, err = call("logits", TINY, "--ids", str(ids)[1:-1], "--out", out, *options)
        assert (status, err) == (0, "")
        saved = load_file(out)["logits"]
        engine = Engine.load(TINY, dtype=dtype, backend=backend)
        assert saved.dtype == torch.float32
        assert torch.equal(saved, engine.logits(ids, chunk=chunk))


def test_trace_holds_every_probe(call: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    out = tmp_path / "trace.safetensors"
    assert call("trace", TINY, "--ids", "1,2,3", "--out", out) == (0, "", "")
    engine = Engine.load(TINY, backend="eager")
    cache = {f"cache.layers.{i}.{part}" for i in range(engine.spec.n_layers) for part in "kv"}
    traced = load_file(out)
    assert set(traced) == cache | set(probes(engine.decoder))
    assert torch.equal(traced["logits"][0], engine.logits([1, 2, 3]))


def test_a_failed_command_writes_nothing(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for wrong in (["--ids", "999999"], ["--ids", "1", "--chunk", "0"], ["--text", "no tokenizer"]):
        status, out, err = call("logits", TINY, *wrong, "--out", tmp_path / "f.safetensors")
        assert (status, out) == (2, "")
        assert is_one_sentence(err)
        assert list(tmp_path.iterdir()) == []


# -- the judge -----------------------------------------------------------------------------------


def test_check_conforms_with_status_0(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
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
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
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


def test_an_altered_golden_is_status_2_and_named(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
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


def test_golden_list_names_every_case(call: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = call("golden", "list")
    assert (status, err) == (0, "")
    headings, *lines = out.splitlines()
    assert headings.split()[:2] == ["golden", "kind"]
    assert all(len(line) <= 80 for line in lines)
    listed = {line.split()[0] for line in lines}
    assert listed == {path.name for path in TINY.parent.iterdir() if path.is_dir()}


# -- a conversation ------------------------------------------------------------------------------


def test_chat_remembers_until_reset(
    call: Callable[..., tuple[int, str, str]], loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn must send the whole conversation, and /reset only the system message."""
    sent: list[Any] = []

    def spy(self: Tokenizer, messages: list[dict[str, str]], **extra: Any) -> list[int]:
        sent.append([(m["role"], m["content"]) for m in messages])
        return [1]

    lines = iter(["Hi", "", "And you?", "/reset", "Bye", "/exit"])
    monkeypatch.setattr("engine.Tokenizer.encode_chat", spy)
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    answers = iter(["one", "two", "three"])
    monkeypatch.setattr(
        "engine.Engine.stream",
        lambda self, ids, params: iter(
            [Piece(next(answers), (1,), None), Piece("!", (2,), "stop")]
        ),
    )
    status, out, _ = call("chat", loaded, "--system", "Be brief.")
    assert (status, out) == (0, "one!\ntwo!\nthree!\n")
    system = ("system", "Be brief.")
    assert sent == [
        [system, ("user", "Hi")],
        [system, ("user", "Hi"), ("assistant", "one!"), ("user", "And you?")],
        [system, ("user", "Bye")],
    ]


def test_chat_survives_a_long_message_and_an_interrupted_answer(
    call: Callable[..., tuple[int, str, str]], loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C cuts an answer short; a message without room is refused; neither ends the chat."""
    lines = iter(["word " * 10_000, "Hi"])

    def interrupted(self: Engine, ids: list[int], params: SamplingParams) -> Iterator[Piece]:
        if len(ids) > 8192:
            raise RequestError("the prompt has too many tokens")
        yield Piece("cut", (1,), None)
        raise KeyboardInterrupt

    def ask(*prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr("engine.Engine.stream", interrupted)
    status, out, err = call("chat", loaded)
    assert (status, out) == (0, "cut\n")
    assert "too many tokens, or /reset" in err


def test_chat_answers_with_a_real_model(
    call: Callable[..., tuple[int, str, str]], loaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["What is the capital of France?", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *prompt: next(lines))
    status, out, _ = call("chat", loaded, "--max-tokens", "12")
    assert status == 0
    assert "Paris" in out


# -- speculative decoding ------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [["--prompt-lookup"], ["--draft", TINY]])
def test_generate_says_how_many_drafts_were_right(
    call: Callable[..., tuple[int, str, str]], smollm2: Path, drafts: list[str], tmp_path: Path
) -> None:
    """A draft model that is another model altogether is refused instead."""
    status, out, err = call("generate", smollm2, "a b c a b c a b", "--max-tokens", "4", *drafts)
    if drafts[0] == "--draft":
        assert (status, out) == (2, "")
        assert "a draft model must have the same ones" in err
        return
    assert status == 0
    accepted = re.fullmatch(r"accepted (\d+) of (\d+) drafted tokens( \(\d+ %\))?", err.strip())
    assert accepted is not None
    assert int(accepted[1]) <= int(accepted[2])


def test_one_drafter_is_enough(call: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = call("generate", TINY, "x", "--prompt-lookup", "--draft", TINY)
    assert (status, out) == (2, "")
    assert "give either --prompt-lookup or --draft" in err
