"""`lockstep tokenize` and `lockstep detokenize`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import PROMPT, PROMPT_IDS, ROOT, Call, is_one_sentence


def test_tokenize_documents_ids_tokens_and_offsets(call: Call, smollm2: Path) -> None:
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
def test_a_tokenizers_own_file_is_enough_to_tokenize(call: Call, name: str) -> None:
    file = ROOT / "tests" / "tokenizer" / "fixtures" / name
    status, out, err = call("tokenize", file, "the text")
    assert (status, err) == (0, "")
    assert call("detokenize", file, "--skip-special", *out.split()) == (0, "the text\n", "")


def test_tokenize_reads_a_file_byte_by_byte(call: Call, smollm2: Path, tmp_path: Path) -> None:
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


def test_detokenize_keeps_or_skips_special_tokens(call: Call, smollm2: Path) -> None:
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
