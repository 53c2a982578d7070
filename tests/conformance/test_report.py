"""What a reader sees of a check: the terminal, the JSON document, the page."""

from __future__ import annotations

import io
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from rich.console import Console

from conformance.check import run_check
from conformance.golden import REPOSITORY_GOLDENS
from conformance.judgement import Disagreement, Finding, Standing
from conformance.lockstep import Element
from conformance.report import Report, TextTrial, print_report, write_html
from conformance.report.page import COLUMNS, binned, operations, step_of
from conformance.report.words import message
from conformance.text import TextFinding
from conformance.verdict import Culprit, Trial
from engine.command import json_text
from engine.layers import RMSNorm

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "conformance/report/schema.json").read_text(encoding="utf-8"))
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.fixture(scope="module")
def sound() -> Report:
    return run_check(golden=REPOSITORY_GOLDENS / "llama-gqa")


@pytest.fixture(scope="module")
def planted() -> Report:
    """A norm that is off by a thousandth, in every layer."""
    norm = RMSNorm.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RMSNorm, "forward", lambda self, x: norm(self, x) * 1.001)
        return run_check(golden=REPOSITORY_GOLDENS / "llama-gqa")


def made(**changes: Any) -> Report:
    """A report made by hand, with something in every field."""
    guilty = Finding(
        "layers.1.attn.q", 0, 3, 1, 0.5, 1e-7, "largest", worst=(Element(5, math.inf, 1.0),)
    )
    after = Finding("logits", 0, 3, None, 0.5, 1e-6, "rms", propagated_from=("layers.1.attn.q",))
    probes = ("embed", "layers.0.attn.q", "layers.1.attn.q", "cache.layers.1.k", "logits")
    standings = tuple(Standing(p, torch.tensor([[0.2, torch.nan, 0.4, 7.0]])) for p in probes)
    broken = Standing("layers.1.out", torch.full((1, 1), torch.inf), "has the shape (1,)")
    trial = Trial(
        case="made",
        candidate="an engine",
        dtype="float32",
        schedule=(3, 1),
        culprits=(Culprit(guilty, "elsewhere/engine.py", 7, True),),
        propagated=(after,),
        disagreements=(Disagreement(2, 5, 6, 1e-9, 1e-6), Disagreement(3, 5, 6, math.inf, 1e-6)),
        skipped=("layers.0.attn.scores",),
        probes=6,
        rows=24,
        own=standings,
        whole=(*standings, broken),
        logits_outside=True,
    )
    text = TextTrial("made", "generation", (TextFinding("generate", "Hi", [1], [2]),), "Ho")
    return Report({"device": "cpu"}, [replace(trial, **changes)], [text], ["other: not here"])


# -- JSON ----------------------------------------------------------------------------------------


def closed(schema: Any) -> Any:
    """The same schema, with no room for a field that it does not list."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {key: closed(value) for key, value in schema.items()}
    lists_them = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    return inside | ({"additionalProperties": False} if lists_them else {})


def document_of(report: Report) -> Any:
    return json.loads(json_text(report.to_json()))


def test_the_json_document_is_what_its_schema_says(sound: Report, planted: Report) -> None:
    """To the last field: one that the schema does not list is one that nobody documents."""
    validator = Draft202012Validator(closed(SCHEMA))
    for report in (sound, planted, made()):
        assert [error.message for error in validator.iter_errors(document_of(report))] == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.update(schema=2),
        lambda d: d.update(verdict="error"),
        lambda d: d.update(more=1),
        lambda d: d["culprits"][0].pop("graft_confirms"),
        lambda d: d["culprits"][0].update(error="a lot"),
        lambda d: d["cases"][0].pop("standings"),
        lambda d: d["cases"][0]["propagated"][0].update(kind="mean"),
        lambda d: d["ties"][0].pop("case"),
    ],
)
def test_another_document_is_not_what_the_schema_says(spoil: Any) -> None:
    document = document_of(made())
    spoil(document)
    assert list(Draft202012Validator(closed(SCHEMA)).iter_errors(document))


def test_every_field_of_the_schema_is_explained() -> None:
    def fields(schema: Any) -> Iterator[str]:
        for key, value in schema.items() if isinstance(schema, dict) else ():
            yield from value if key == "properties" else ()
            yield from fields(value)

    named = set(re.findall(r"`(\w+)`", (ROOT / "docs/report.md").read_text(encoding="utf-8")))
    assert set(fields(SCHEMA)) - named == set()


def test_a_culprit_says_what_follows_from_it_and_what_follows_says_from_what(
    planted: Report,
) -> None:
    document = document_of(planted)
    eager = document["cases"][0]
    first = document["culprits"][0]
    assert first["probe"] == "layers.0.pre_attn_norm"
    assert first["kind"] in ("largest", "rms", "along")
    assert first["worst"][0]["got"] != first["worst"][0]["expected"]
    following = [f for f in eager["propagated"] if first["probe"] in f["propagated_from"]]
    assert first["followers"] == len(following) == len(eager["propagated"]) > 10
    assert [s["probe"] for s in eager["standings"]][:2] == ["embed", first["probe"]]


# -- the terminal --------------------------------------------------------------------------------


def shown(report: Report, width: int = 80) -> list[str]:
    out = io.StringIO()
    print_report(report, Console(file=out, width=width))
    return out.getvalue().splitlines()


def test_the_first_culprit_stands_first_and_the_verdict_last(planted: Report) -> None:
    lines = shown(planted)
    assert re.fullmatch(
        r"culprit  layers\.0\.pre_attn_norm  engine/layers\.py:\d+  confirmed by graft", lines[0]
    )
    assert re.fullmatch(r" {9}\d+ more probes follow from it", lines[3])
    assert lines[4].startswith("case ")
    assert lines[-1] == "diverges"


def test_everything_fits_80_columns(sound: Report, planted: Report) -> None:
    for report in (sound, planted, made()):
        assert max(map(len, shown(report))) <= 80
    long = made(case="llama-rope-linear", candidate="engine (eager)")
    assert any("llama-rope-linear  engine (eager)" in line for line in shown(long))


def test_a_check_that_conforms_is_short(sound: Report) -> None:
    lines = shown(sound)
    assert len(lines) <= 8
    assert lines[-1].startswith("conforms: 116 probes, ")


def test_an_operation_is_one_entry_however_many_layers_it_is_wrong_in(planted: Report) -> None:
    entries = [line for line in shown(planted) if line.startswith("culprit")]
    assert len(planted.trials[0].culprits) == 7
    assert len(entries) == 3  # two norms of the layers, and the final one
    assert any("also in layers 1, 2" in line for line in shown(planted))


def test_what_no_operation_explains_is_shown_as_outside() -> None:
    lines = shown(made(culprits=()))
    assert any(line.startswith("outside  logits  step 0  position 3") for line in lines)
    assert any(line.startswith("BUG  made, an engine: after position 3") for line in lines)


# -- the page ------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The tags of a page, its links, and the text in each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = {name: value or "" for name, value in attrs}
        links = ("src", "href", "srcset", "data", "action", "poster", "background")
        self.links += [given[name] for name in links if name in given]
        self.labels += [given["aria-label"]] if tag == "button" else []
        assert not any(name.startswith("on") for name in given)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in self.code:
            self.code[self.tags[-1]].append(data)


def page_of(report: Report, folder: Path) -> str:
    write_html(report, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def test_the_page_names_the_culprit_before_anything_else(planted: Report, tmp_path: Path) -> None:
    text = page_of(planted, tmp_path)
    head = text[text.index("<body>") : text.index('class="trial"')]
    assert "diverges: <span>Layer 0, pre_attn_norm</span>" in head
    assert re.search(r"at <code>engine/layers\.py:\d+</code>", head)
    assert "the graft confirms it" in head.lower()
    assert re.search(r"\d+ more probes follow from it", head)
    finding = planted.trials[0].culprits[0].finding
    assert f"token position {finding.position}" in head
    assert f"{finding.error:.2e}" in head and f"{finding.allowance:.2e}" in head
    assert f"element {finding.worst[0].index}: expected" in head


def test_every_probe_of_every_run_is_on_the_page(
    sound: Report, planted: Report, tmp_path: Path
) -> None:
    for report in (sound, planted, made()):
        text = page_of(report, tmp_path)
        page = Page(text)
        data = json.loads(page.code["script"][0])["trials"]
        for trial, shown_as in zip(report.trials, data, strict=True):
            expected = {s.probe for s in (*trial.own, *trial.whole)}
            assert {p["name"] for p in shown_as["probes"]} == expected
            assert all(f'<th scope="row"><code>{probe}</code>' in text for probe in expected)
        squares = sum(len(t.own) + len(t.whole) for t in report.trials)
        assert len(page.labels) == squares
        guilty = sum(label.endswith(", culprit") for label in page.labels)
        assert (guilty > 0) == any(t.culprits for t in report.trials)


def test_the_page_loads_nothing(planted: Report, tmp_path: Path) -> None:
    """It is opened from disk, mailed, kept: whatever it fetched would be missing."""
    page = Page(page_of(planted, tmp_path))
    assert [link for link in page.links if not link.startswith(("#", "data:,"))] == []
    assert not {"img", "iframe", "object", "embed"} & set(page.tags)
    style, script = "".join(page.code["style"]), "".join(page.code["script"])
    assert style and script
    assert "url(" not in style and "@import" not in style
    assert re.findall(r"\w+://[^\s\"']*", script) == [NAMESPACE]
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|innerHTML|eval)\b", script)


def test_names_that_are_markup_stay_text(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
    report = made(case=evil, candidate=evil)
    trial = report.trials[0]
    spoilt = Standing(f"layers.0.{evil}", torch.zeros(1, 4), None)
    finding = replace(trial.culprits[0].finding, problem=evil, probe=spoilt.probe, error=None)
    culprit = replace(trial.culprits[0], finding=finding, file=evil)
    report.trials = [replace(trial, own=(spoilt,), culprits=(culprit,))]
    report.texts = [TextTrial(evil, evil, (TextFinding(evil, evil, evil, evil),), evil)]
    report.skipped, report.environment = [evil], {evil: evil}
    text = page_of(report, tmp_path)
    page = Page(text)
    assert "img" not in page.tags and page.tags.count("script") == 2
    assert "49" not in re.sub(r"[^{]*\{\{ 7", "", text[: text.index("<body>")])
    data = json.loads(page.code["script"][0])
    assert data["trials"][0]["probes"][0]["name"] == spoilt.probe
    assert max(map(len, shown(report))) < 1000  # the terminal lives through it, too


def test_the_page_says_what_was_skipped_tied_and_answered(tmp_path: Path) -> None:
    text = page_of(made(), tmp_path)
    assert "other: not here" in text
    assert "an engine has no attn.scores" in text
    assert "made, an engine: after position 2 it prefers token 5" in text
    assert "differ by more than a tie: 1" in text
    assert "<dt>device</dt><dd>cpu</dd>" in text
    assert "<q>Ho</q>" in text
    assert "has the shape (1,)" in text


def test_a_candidate_without_probes_has_a_page_too(tmp_path: Path) -> None:
    logits = (Standing("logits", torch.tensor([[0.5, 2.0]])),)
    text = page_of(made(culprits=(), own=(), whole=logits), tmp_path)
    assert "Without probes" in text
    assert Page(text).labels == ["logits: 2.00 of its allowance"]
    write_html(Report({}, [], []), tmp_path / "empty.html")


def test_a_large_model_has_a_page_of_bounded_size(tmp_path: Path) -> None:
    """Nothing is left out: neighbouring positions share a column, which shows the largest."""
    shares = torch.rand(16, 1000)
    shares[3, 999] = 5.0
    probes = [f"layers.{n}.attn.{x}" for n in range(40) for x in "q k v context out".split()]
    many = tuple(Standing(probe, shares) for probe in probes)
    text = page_of(made(own=many, whole=many), tmp_path)
    assert len(text) < 3_000_000
    trial = json.loads(Page(text).code["script"][0])["trials"][0]
    columns = math.ceil(trial["positions"] / trial["width"])
    assert trial["positions"] == 1000
    assert COLUMNS[0] <= columns <= COLUMNS[1]
    assert all(len(row) == columns for row in trial["probes"][0]["own"]["shares"])
    assert trial["probes"][0]["own"]["shares"][3][-1] == 5.0


def test_positions_are_merged_by_their_largest_share_and_gaps_stay_gaps() -> None:
    shares = torch.tensor([[0.1, 0.23456, torch.nan, torch.nan, 1234.5]])
    assert binned(shares, 1) == [[0.1, 0.235, None, None, 1230.0]]
    assert binned(shares, 2) == [[0.235, None, 1230.0]]
    assert json.loads(json.dumps(binned(torch.tensor([[torch.inf]]), 1), allow_nan=False)) == [
        [1e300]
    ]


def test_the_border_between_inside_and_outside_is_a_border_between_colours() -> None:
    assert step_of(1.0) < step_of(1.001)
    assert step_of(0.0) == 0
    assert step_of(math.inf) == step_of(1e6)


def test_columns_keep_the_references_order_when_a_candidate_lacks_some() -> None:
    short = ["embed", "layers.0.a", "layers.0.c"]
    full = ["embed", "layers.0.a", "layers.0.b", "layers.0.c", "layers.1.d"]
    assert operations([short, full]) == ["a", "b", "c", "d"]


def test_the_page_s_parts_are_installed_with_the_package() -> None:
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = packaging["tool"]["setuptools"]["package-data"]["conformance.report"]
    folder = ROOT / "conformance" / "report"
    found = {file.name for pattern in patterns for file in folder.glob(pattern)}
    beside = {f.name for f in folder.iterdir() if f.is_file() and f.suffix != ".py"}
    assert beside <= found


def test_answers_alone_are_no_probes(tmp_path: Path) -> None:
    """A tokenizer has none: nothing may sound as if some had been compared."""
    report = Report({}, texts=[TextTrial("text-gpt2", "tokenizer", ())])
    assert shown(report)[-1] == "conforms: every answer is the reference's"
    assert "probes" not in "".join(shown(report))
    assert "<p>Every answer is the reference&#39;s." in page_of(report, tmp_path)


# -- a failing test's message ----------------------------------------------------------------------


def test_a_message_says_what_is_wrong_where_and_what_it_looks_like(planted: Report) -> None:
    trial = planted.trials[0]
    first, follows, looks = message(trial, trial.culprits[0]).splitlines()
    assert re.fullmatch(
        r"layers\.0\.pre_attn_norm  step 0  position \d+  error( \w+)? \S+, allowed \S+"
        r"  engine/layers\.py:\d+  \(confirmed by graft\)",
        first,
    )
    assert re.fullmatch(r"    \d+ more probes follow from it", follows)
    assert re.match(r"    element \d+: expected \S+, got \S+; element", looks)
