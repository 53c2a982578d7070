"""`--quantization`: weights in fewer bits on request, and one sentence where there are none such."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from conformance.golden import REPOSITORY_GOLDENS
from tests.cli.command_line import Call

MODEL = REPOSITORY_GOLDENS / "llama-gqa"


def test_weights_of_eight_bits_move_logits_a_little(call: Call, tmp_path: Path) -> None:
    got = {}
    for name, options in {"plain": [], "int8": ["--quantization", "int8"]}.items():
        assert call("logits", MODEL, "--ids", "1,2,3", "--out", tmp_path / name, *options)[0] == 0
        got[name] = load_file(tmp_path / name)["logits"]
    largest = got["plain"].abs().max()
    assert 1e-4 * largest < (got["int8"] - got["plain"]).abs().max() < 0.1 * largest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--quantization", "int2"], "there are int8, int4"),
        (["--quantization", "int4", "--batch-invariant"], "batch-invariant"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_status_2(
    call: Call, tmp_path: Path, options: list[str], says: str
) -> None:
    out = tmp_path / "never"
    status, _, err = call("logits", MODEL, "--ids", "1,2,3", "--out", out, *options)
    assert status == 2 and says in err and err.count("\n") == 1 and not out.exists()
