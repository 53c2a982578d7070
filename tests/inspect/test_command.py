"""`lockstep inspect`: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from engine import Engine
from engine.cli.inspect import BESIDE
from tests.cli.command_line import Call, is_one_sentence


def test_it_writes_the_page_and_the_numbers_and_says_what_the_stages_are(
    call: Call, speaking: Path, tmp_path: Path
) -> None:
    out, numbers = tmp_path / "page.html", tmp_path / "page.json"
    status, said, err = call(
        "inspect", speaking, "Hi there", "--max-tokens", "3", "--out", out, "--json", numbers
    )
    assert (status, err.count("error")) == (0, 0)
    document = json.loads(numbers.read_text(encoding="utf-8"))
    share = document["time"]["accounted"]
    assert said.startswith(
        f"{out}: {len(document['prompt']['tokens'])} tokens read and 3 answered in "
    )
    assert said.strip().endswith(f"of which the stages are {share:.1%}")
    assert '<section class="part" id="attention"' in out.read_text(encoding="utf-8")


def test_json_on_standard_output_is_all_there_is(call: Call, speaking: Path) -> None:
    status, said, _ = call("inspect", speaking, "Hi", "--max-tokens", "2", "--json", "-")
    assert status == 0
    assert len(json.loads(said)["answer"]) == 2


def test_sampling_is_asked_for_as_in_generate(call: Call, speaking: Path) -> None:
    options = "--temperature 0.8 --top-k 5 --seed 1 --repetition-penalty 1.1 --max-tokens 2".split()
    _, said, _ = call("inspect", speaking, "Hi", *options, "--json", "-")
    stages = json.loads(said)["choices"][0]["stages"]
    names = [stage["name"] for stage in stages]
    assert names == ["model", "repetition penalty", "temperature", "top-k"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ((), "give --out or --json"),
        (("--out", "/nowhere/page.html"), "/nowhere does not exist"),
        (
            ("--json", "-", "--against", "llamas"),
            "nothing to time 'llamas' by; there is transformers",
        ),
        (("--json", "-", "--temperature", "-1"), "temperature"),
    ],
)
def test_bad_options_are_one_sentence(
    call: Call, speaking: Path, options: tuple[str, ...], part: str
) -> None:
    status, said, err = call("inspect", speaking, "Hi", *options)
    assert (status, said) == (2, "")
    assert is_one_sentence(err)
    assert part in err


def test_an_empty_prompt_leaves_no_file(call: Call, speaking: Path, tmp_path: Path) -> None:
    status, _, err = call("inspect", speaking, "x" * 3000, "--out", tmp_path / "page.html")
    assert status == 2
    assert is_one_sentence(err)
    assert not list(tmp_path.iterdir())


def test_others_times_stand_beside(
    call: Call, speaking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def beside(*given: str) -> dict[str, dict[str, float]]:
        asked.append(given)
        return {"embedding": {"prompt": 0.5}}

    monkeypatch.setitem(BESIDE, "transformers", beside)
    _, said, _ = call("inspect", speaking, "Hi", "--json", "-", "--against", "transformers")
    assert json.loads(said)["time"]["beside"] == {"transformers": {"embedding": {"prompt": 0.5}}}
    assert asked == [(str(speaking), "Hi", "float32", "cpu")]


def test_the_reference_s_stages_have_this_engine_s_names(
    engine: Engine, speaking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers' stages are those of one layer, and its attention has the cache in it."""
    from conformance.bench import beside

    class Worker:
        def __init__(self, *given: object) -> None: ...
        def __enter__(self) -> Worker:
            return self

        def __exit__(self, *error: object) -> None: ...
        def ask(self, question: str, text: str) -> dict[str, dict[str, float]]:
            assert (question, text) == ("stages", "Hi")
            named = ("embedding", "attention", "cache", "feed-forward", "head", "whole pass")
            figures = {f"{phase}.{name}": 1.0 for phase in ("prompt", "step") for name in named}
            figures |= {"prompt.cache": 0.25, "tokenize": 3.0, "detokenize": 4.0}
            return {name: {"seconds": seconds} for name, seconds in figures.items()}

    monkeypatch.setattr(beside, "Worker", Worker)
    found = beside.reference(str(speaking), "Hi", "float32", "cpu")
    assert found["attention"] == {"prompt": 2 * 0.75, "step": 0.0}
    assert found["cache"] == {"prompt": 0.5, "step": 2.0}
    assert found["feed-forward"]["prompt"] == 2.0
    assert found["LM head"] == {"prompt": 1.0, "step": 1.0}
    assert found["tokenize"] == {"prompt": 3.0}
    assert found["whole pass"]["step"] == 1.0


def test_the_engine_alone_has_the_command_and_nobody_to_time_beside(speaking: Path) -> None:
    import subprocess

    command = [sys.executable, "-m", "engine", "inspect", str(speaking), "Hi", "--json", "-"]
    done = subprocess.run([*command, "--against", "transformers"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "nothing to time 'transformers' by here" in done.stderr
