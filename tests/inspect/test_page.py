"""The page: one file that loads nothing, in which no text is markup, and which can be read."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.inspect import inspect_page, inspected, page

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "engine" / "inspect"
SCRIPTS = sorted(FOLDER.glob("*.js"))
CSS = (FOLDER / "page.css").read_text(encoding="utf-8")

#: What closes scripts, opens comments, turns the direction of writing, or has no glyph.
HOSTILE = "</script><script>alert(1)</script><!--\u202e\u2066\u200b\x00\x1b]]>&quot;'\"\u2028\ud800 <img src=x onerror=alert(1)>"


class Read(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def shown(document: dict[str, Any]) -> str:
    return page(document)


def test_the_document_is_in_the_page_as_it_is(document: dict[str, Any], shown: str) -> None:
    data, _ = Read(shown).scripts
    assert json.loads(data) == json.loads(json.dumps(document))


def test_hostile_text_is_never_markup(engine: Engine, shown: str) -> None:
    """Prompt, answer and vocabulary may hold anything: the page has the elements that it always has."""
    hostile = inspect_page(engine, HOSTILE, SamplingParams(max_tokens=2))
    usual, read = Read(shown), Read(hostile)
    assert [tag for tag, _ in read.tags] == [tag for tag, _ in usual.tags]
    assert read.tags == usual.tags
    data, script = read.scripts
    assert script == usual.scripts[1]
    assert json.loads(data)["prompt"]["text"] == HOSTILE
    hostile.encode("utf-8")  # a lone surrogate is written as an escape
    document = json.loads(data)
    document["spellings"] = {
        i: {"spelled": HOSTILE, "text": HOSTILE, "bytes": ""} for i in range(9)
    }
    document["model"]["name"] = HOSTILE.replace("\ud800", "")
    changed = Read(page(document))
    assert [tag for tag, _ in changed.tags] == [tag for tag, _ in usual.tags]


def test_the_page_loads_nothing(shown: str) -> None:
    read = Read(shown)
    addresses = [
        value
        for _, attributes in read.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data")
    ]
    assert addresses
    assert all(value and value.startswith(("#", "data:,")) for value in addresses)
    (policy,) = [
        a["content"] for _, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert (policy or "").startswith("default-src 'none'; ")
    assert "@import" not in CSS and "url(" not in CSS
    code = read.scripts[1].replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|WebSocket|import\(|importScripts", code)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_scripts_put_texts_in_as_text(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", code
    )


def test_every_script_is_in_the_page_and_in_the_package(shown: str) -> None:
    _, code = Read(shown).scripts
    for script in SCRIPTS:
        assert script.read_text(encoding="utf-8").strip() in code
    packaging = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = packaging["tool"]["setuptools"]["package-data"]["engine.inspect"]
    found = {file.name for pattern in patterns for file in FOLDER.glob(pattern)}
    assert {f.name for f in FOLDER.iterdir() if f.is_file() and f.suffix != ".py"} <= found


def test_the_parts_are_reached_from_the_navigation(shown: str) -> None:
    read = Read(shown)
    ids = {a["id"] for _, a in read.tags if "id" in a}
    links = [a["href"] for tag, a in read.tags if tag == "a" and "href" in a]
    assert len(links) == 6
    assert all((link or "")[1:] in ids for link in links)
    assert ("html", {"lang": "en"}) in read.tags


# -- legible ---------------------------------------------------------------------------------------


def colours(dark: bool) -> dict[str, str]:
    start = CSS.index("prefers-color-scheme: dark") if dark else 0
    block = CSS[CSS.index(":root {", start) :].split("}")[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def pairs() -> Iterator[tuple[str, str]]:
    """Ink and ground of all text: chips of tokens, panels, what is chosen, links, names of lines."""
    for ground in ("ground", "raised", "t0", "t1", "t2", "t3", "t4"):
        yield "ink", ground
    for ink in ("quiet", "accent", "answer"):
        yield from ((ink, "ground"), (ink, "raised"))
    yield from (("quiet", f"t{i}") for i in range(5))
    yield from ((f"c{i}", "ground") for i in range(7))
    yield "ground", "answer"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(dark: bool) -> None:
    """AA of WCAG 2.2: 4.5 to 1."""
    known = colours(dark)
    faint = {(a, b): round(contrast(known[a], known[b]), 2) for a, b in pairs()}
    assert {pair: value for pair, value in faint.items() if value < 4.5} == {}


def test_motion_and_focus_are_the_reader_s() -> None:
    moving = re.sub(r"@media \(prefers-reduced-motion: no-preference\) \{.*\}", "", CSS)
    assert not re.search(r"transition|animation|scroll-behavior", moving)
    assert ":focus-visible { outline: 2px" in CSS
    assert "outline: none" not in CSS and "outline: 0" not in CSS


# -- large -----------------------------------------------------------------------------------------


def test_a_long_prompt_is_summarised_and_nothing_of_it_left_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.inspect.attention.SIDE", 16)
    ids = [i % 40 for i in range(60)]
    found = inspected(engine, ids, SamplingParams(max_tokens=4, ignore_eos=True))
    shown = found["attention"]
    assert (shown["rows"], shown["width"]) == (63, 4)
    for layer in shown["layers"]:
        for head in layer["heads"]:
            assert [len(row) for row in head["largest"]] == [*range(1, 17)]
            # Each row of weights adds up to 1, so that each line of squares adds up to its rows.
            for r, row in enumerate(head["mean"]):
                rows = range(4 * r, min(4 * r + 4, 63))
                squares = [
                    sum(1 for q in rows for k in range(4 * c, 4 * c + 4) if k <= q)
                    for c in range(r + 1)
                ]
                total = sum(mean * n for mean, n in zip(row, squares, strict=True)) / 10_000
                assert abs(total - len(rows)) < 1e-4 * sum(squares)
    assert "rows are more than fit" in (FOLDER / "attention.js").read_text(encoding="utf-8")
