"""A real model's inspection: what the page holds is what the trace, the tokenizer and the answer say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.cli.command_line import PROMPT, PROMPT_IDS, Call
from tests.cli.conftest import smollm2  # noqa: F401  (a fixture)
from tests.inspect.test_document import printed
from tests.inspect.test_page import Read

MOST = 3_000_000  # bytes of the page


@pytest.fixture
def written(call: Call, smollm2: Path, tmp_path: Path) -> tuple[str, str]:  # noqa: F811
    """The page, and what the command said."""
    out = tmp_path / "page.html"
    status, said, err = call("inspect", smollm2, PROMPT, "--max-tokens", "3", "--out", out)
    assert status == 0, err
    return out.read_text(encoding="utf-8"), said


def test_the_page_s_numbers_are_those_of_the_trace_command(
    call: Call,
    smollm2: Path,  # noqa: F811
    written: tuple[str, str],
    tmp_path: Path,
) -> None:
    page, said = written
    assert len(page.encode()) < MOST
    document: dict[str, Any] = json.loads(Read(page).scripts[0])
    out = tmp_path / "trace.safetensors"
    assert call("trace", smollm2, "--text", PROMPT, "--out", out)[0] == 0
    trace = load_file(out)
    for layer, shown in enumerate(document["attention"]["layers"]):
        for head, seen in enumerate(shown["heads"]):
            rows = printed(trace[f"layers.{layer}.attn.weights"][0, head])
            assert seen["largest"][: len(rows)] == rows
    assert [token["id"] for token in document["prompt"]["tokens"]] == PROMPT_IDS
    assert document["answer"][0]["out"] == " Paris"
    best = trace["logits"][0, -1].double().softmax(-1).topk(10)
    choice = document["choices"][0]
    assert choice["ids"] == best.indices.tolist()
    assert choice["stages"][0]["shares"] == pytest.approx(best.values.tolist(), rel=1e-4)
    # Rows of the stages add up to the whole within 5 %, which is printed.
    time = document["time"]
    rows = time["rows"]
    total = sum(row["prompt"] + time["steps"] * row["step"] for row in rows)
    assert 0.95 * time["whole"] <= total <= time["whole"] * 1.001
    assert said.strip().endswith(f"of which the stages are {time['accounted']:.1%}")
