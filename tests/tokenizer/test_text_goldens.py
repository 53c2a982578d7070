"""The text cases: the engine conforms, and an answer that is wrong is blamed on its stage alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.golden import REPOSITORY_GOLDENS
from conformance.text import STAGES, check_text
from conformance.text_cases import TEXT_CASES

Answers = dict[str, Any]


@pytest.mark.parametrize("name", [case.name for case in TEXT_CASES])
def test_every_stage_conforms(name: str) -> None:
    assert check_text(REPOSITORY_GOLDENS / name) == []


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case.name)
def test_the_vocabulary_in_the_golden_is_the_cases_own(case: Any) -> None:
    """Training it again gives the same file, whatever the order of this process's hashes."""
    text = (REPOSITORY_GOLDENS / case.name / "tokenizer.json").read_text(encoding="utf-8")
    assert json.loads(text) == case.tokenizer()
    assert len(case.tokenizer()["model"]["vocab"]) <= 600


def _change(key: str, within: str = "texts") -> Callable[[Answers], None]:
    def change(golden: Answers) -> None:
        for answers in golden[within]:
            pairs = answers[key]
            if pairs and isinstance(pairs[0], list) and key not in ("post", "offsets"):
                pairs[0][1] = None
                return
        golden[within][2][key] = None

    return change


def _change_post(golden: Answers) -> None:
    golden["texts"][2]["post"][1].append(0)


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("added", _change("added")),
        ("added", _change("added_normalized")),
        ("normalize", _change("normalize")),
        ("split", _change("split")),
        ("merge", _change("merge")),
        ("post", _change_post),
        ("offsets", _change("tokens")),
        ("offsets", _change("offsets")),
        ("stop", _change("shown", "stops")),
        ("chat", _change("rendered", "chats")),
    ],
)
def test_a_wrong_answer_is_blamed_on_its_stage_alone(
    stage: str, change: Callable[[Answers], None], tmp_path: Path
) -> None:
    """Each stage is given the reference's input, so what it does wrong is its own."""
    folder = tmp_path / "case"
    shutil.copytree(REPOSITORY_GOLDENS / "text-qwen2", folder)
    file = folder / "text.json"
    golden = json.loads(file.read_text(encoding="utf-8"))
    change(golden)
    file.write_text(json.dumps(golden), encoding="utf-8")
    assert {finding.stage for finding in check_text(folder)} == {f"tokenizer.{stage}"}


def test_findings_come_in_the_order_of_the_stages(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(REPOSITORY_GOLDENS / "text-qwen2", folder)
    file = folder / "text.json"
    golden = json.loads(file.read_text(encoding="utf-8"))
    for change in (_change("rendered", "chats"), _change("offsets"), _change("merge")):
        change(golden)
    file.write_text(json.dumps(golden), encoding="utf-8")
    found = [STAGES.index(finding.stage) for finding in check_text(folder)]
    assert found == sorted(found)
    assert len(set(found)) == 3
