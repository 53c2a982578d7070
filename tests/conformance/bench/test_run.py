"""A whole run of a tiny model, through real workers: the document, the tables, the picture, the refusals."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from conformance.bench import compare
from conformance.bench.growth import Growth, Line, Point, fitted
from conformance.bench.markdown import markdown
from conformance.bench.plot import growth_svg, ticks
from conformance.bench.result import Bench, model_of
from conformance.bench.run import Wanted, run_bench
from conformance.bench.scenarios import Sizes, scenarios
from conformance.bench.terminal import print_bench
from conformance.bench.work import work
from conformance.golden import REPOSITORY_GOLDENS
from engine.command import json_text
from engine.errors import LockstepError, RequestError
from engine.weights import open_checkpoint
from tests.cli.command_line import TINY, Call, is_one_sentence

SIZES = Sizes(
    prompt=4,
    answer=3,
    batches=(1, 2),
    prefills=(9, 4000),
    reading=1 << 20,
    products=((8, 8, 8),),
    lengths=(5, 9),
    together=(1, 2),
)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Bench:
    """Two forms of this engine in two rounds, compared with a run in which one was a thousand times as good."""
    old = tmp_path_factory.mktemp("old") / "old.json"
    model = model_of(open_checkpoint(TINY), str(TINY), work(TINY, "float32"))
    good = {"median": 1e3, "least": 1e3, "most": 1e3}
    key = {"scenario": "decode, batch 1", "form": "eager+bfloat16", "against": "eager"}
    ratios = [{**key, **good}]
    old.write_text(json_text({"schema": 1, "model": model, "dtype": "float32", "ratios": ratios}))
    wanted = Wanted(
        str(TINY),
        forms=["eager", "eager+bfloat16"],
        rounds=2,
        threads=1,
        sizes=SIZES,
        growth=True,
        compare=old,
    )
    return run_bench(wanted, said.append)


def test_progress_says_whose_turn_it_is(bench: Bench, said: list[str]) -> None:
    del bench
    assert said[:2] == ["eager: warming up", "eager: loading"]
    assert "round 2 of 2: decode, batch 2, eager+bfloat16" in said
    assert "growth, round 1 of 2: 9 tokens" in said


def test_the_document_has_all_that_was_measured(bench: Bench) -> None:
    document: dict[str, Any] = json.loads(json_text(bench.to_json()))
    assert document["model"]["name"] == str(TINY)
    assert document["model"]["parameters"] > 10_000
    assert document["limits"]["bandwidth"] > 0
    assert set(document["limits"]["matrix"]) == {"float32", "bfloat16"}
    names = [scenario["name"] for scenario in document["scenarios"]]
    assert names == ["decode, batch 1", "decode, batch 2", "prefill 9", "loading"]
    decode = document["scenarios"][1]["forms"]
    assert set(decode) == {"eager", "eager+bfloat16"}
    assert len(decode["eager"]["seconds"]) == 2
    assert decode["eager"]["ids"] == "equal"
    assert decode["eager"]["tokens_per_second"] == pytest.approx(6 / decode["eager"]["median"])
    assert document["scenarios"][3]["forms"]["eager"]["tokens_per_second"] is None
    pairs = {(r["scenario"], r["form"], r["against"]) for r in document["ratios"]}
    assert ("decode, batch 1", "eager+bfloat16", "eager") in pairs
    assert ("prefill 9", "eager", "limit") in pairs
    assert ("memory", "eager+bfloat16", "eager") in pairs
    assert all(r["least"] <= r["median"] <= r["most"] for r in document["ratios"])
    eager, half = document["forms"]
    assert eager["weights"] == 2 * half["weights"]
    assert eager["start"]["weights"] == eager["weights"]
    assert document["skipped"] == [
        "first token: the model has no tokenizer",
        "prefill 4000: it takes 4001 tokens and the model's context is 64",
    ]
    assert {"date", "processor", "threads", "torch", "transformers"} <= set(document["environment"])


def test_a_run_that_fell_has_status_1_and_says_so(bench: Bench) -> None:
    assert bench.exit_status == 1
    shown = printed(bench)
    assert "fell  decode, batch 1, eager+bfloat16 against eager" in shown
    assert "1000.00 before" in shown
    assert Bench(**{**vars(bench), "falls": []}).exit_status == 0
    assert "no ratio fell" in printed(Bench(**{**vars(bench), "falls": []}))


def test_a_terminal_of_100_columns_shows_every_form_and_figure(bench: Bench) -> None:
    shown = printed(bench)
    for part in (
        "decode, batch 2",
        "eager+bfloat16",
        "x eager",
        "of limit",
        "GB/s",
        "skipped",
        "peak",
    ):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 100


def printed(bench: Bench) -> str:
    shown = StringIO()
    print_bench(bench, Console(width=100, file=shown))
    return shown.getvalue()


def test_markdown_has_a_table_of_everything(bench: Bench) -> None:
    """Each with as many cells in every row as in its heading."""
    stages = {"load": {"seconds": 1.0, "bytes": 2048}, "step.head": {"seconds": 0.5, "bytes": None}}
    document = {**bench.to_json(), "stages": {"eager": stages, "transformers": {}}}
    page = markdown(document, "how fast")
    assert page.startswith(f"# {bench.environment['date'][:10]}: how fast\n")
    for part in (
        "| decode, batch 2 | eager |",
        "| 9 |",
        "Not timed: first token",
        "GB/s",
        "| load | ",
    ):
        assert part in page
    for block in page.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1, block


def test_growth_has_every_size_and_a_picture(bench: Bench) -> None:
    growth = bench.growth
    assert growth is not None
    assert [(p.form, p.size) for p in growth.steps if p.form == "eager"] == [
        ("eager", 5),
        ("eager", 9),
    ]
    assert {p.size for p in growth.batches} == {1, 2}
    assert set(growth.lines) == set(growth.expected) == {"eager", "eager+bfloat16"}
    picture = ET.fromstring(growth_svg(growth))  # noqa: S314 - it is ours
    circles = [element for element in picture.iter() if element.tag.endswith("circle")]
    assert len(circles) == len(growth.steps) + len(growth.prefills) + len(growth.batches)


def test_the_line_of_steps_is_the_one_they_were_made_of() -> None:
    points = [Point("eager", size, 0.5 + 0.25 * size, 0.1) for size in (1, 4, 5, 9)]
    line = fitted(points)
    assert (line.height, line.slope) == (pytest.approx(0.5), pytest.approx(0.25))
    assert fitted(points[:1]) == Line(points[0].seconds, 0.0)


def test_points_stand_where_their_values_are() -> None:
    """At the right end the largest size, at the top the largest time."""
    steps = [Point("eager", 10, 1.0, 0.5), Point("eager", 20, 2.0, 1.0)]
    picture = growth_svg(Growth(steps, steps, steps, {"eager": Line(0, 0.1)}, {}))
    assert '<circle cx="150.0" cy="110.0"' in picture
    assert '<circle cx="300.0" cy="0.0"' in picture
    assert ticks(9.0) == [0, 2, 4, 6, 8]
    assert ticks(0.3) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_a_context_too_short_for_anything_is_refused() -> None:
    with pytest.raises(LockstepError, match="the model's context is too short"):
        scenarios([1, 2], -1, False, SIZES)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["bench"], "MODEL"),
        (["bench", "/nowhere/model"], "/nowhere/model"),
        (["bench", TINY, "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["bench", TINY, "--threads", "0"], "threads must be at least 1, got 0"),
        (["bench", TINY, "--against", "ollama"], "nothing to time 'ollama' by"),
        (["bench", TINY, "--forms", "lazy"], "no form 'lazy'"),
        (["bench", TINY, "--dtype", "float8"], "float8"),
        (["bench", TINY, "--device", "abacus"], "abacus"),
        (["bench", TINY, "--compare", "/nowhere/old.json"], "/nowhere/old.json"),
        (["bench", TINY, "--svg", "f.svg"], "add --growth"),
        (["bench", TINY, "--growth", "--svg", "/nowhere/f.svg"], "/nowhere"),
        (["bench", TINY, "--stages"], "no tokenizer"),
    ],
    ids=lambda value: " ".join(map(str, value[1:])) if isinstance(value, list) else None,
)
def test_a_wrong_request_is_one_sentence_and_status_2(
    call: Call, argv: list[str], says: str
) -> None:
    status, out, err = call(*argv)
    assert (status, out) == (2, "")
    assert is_one_sentence(err)
    assert says in err


def test_a_run_of_another_model_is_refused_before_anything_is_timed(
    call: Call, tmp_path: Path, bench: Bench
) -> None:
    old = tmp_path / "old.json"
    old.write_text(json_text(bench.to_json()))
    status, out, err = call("bench", REPOSITORY_GOLDENS / "gpt2", "--compare", old)
    assert (status, out) == (2, "")
    assert "of different models" in err
    assert "round" not in err
    assert compare.read(old)["dtype"] == "float32"


def test_without_the_reference_nothing_is_timed_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.bench.run._installed", lambda package: False)
    with pytest.raises(RequestError, match="transformers is not installed"):
        run_bench(Wanted(str(TINY), against="transformers"), lambda message: None)


def test_json_is_one_document_on_standard_output(
    call: Call, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    asked: list[Wanted] = []

    def run(wanted: Wanted, say: Any) -> Bench:
        say("in turns")
        asked.append(wanted)
        return bench

    monkeypatch.setattr("conformance.bench.run.run_bench", run)
    argv = [
        "--json",
        "--rounds",
        "2",
        "--forms",
        "eager, eager+bfloat16",
        "--against",
        "transformers",
    ]
    status, out, err = call("bench", TINY, *argv)
    assert status == 1  # a ratio fell
    assert json.loads(out)["rounds"] == 2
    assert "in turns" in err
    [wanted] = asked
    assert wanted.forms == ["eager", "eager+bfloat16"]
    assert wanted.against == "transformers"
