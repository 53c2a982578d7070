"""The page at work: what a reader clicks, focuses and types shows what the document says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import Engine, SamplingParams
from engine.inspect import inspected, page
from tests.inspect.browser import visited
from tests.inspect.test_page import HOSTILE

WALK = """
  const part = (id) => document.getElementById(id);
  // a token, and its merges
  const chips = $$("#tokens .token");
  found.chips = chips.length;
  chips[TOKEN].click();
  found.pressed = chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").length;
  found.token = $("#tokens .panel").textContent;
  const making = $$("#tokens .panel")[1];
  found.symbols = $$(".symbols > span", making).length;
  button("›", making).click();
  found.merged = $("output", making).textContent;
  found.fewer = $$(".symbols > span", making).length;
  // an operation, its formula, its calls
  button("a step", part("shapes")).click();
  change($("#shapes input[type=number]"), 1);
  const norm = button("attn.weights", part("shapes"));
  norm.focus();
  found.formula = $("#shapes .formula").textContent;
  const before = $$("#shapes tr.call").length;
  norm.click();
  found.calls = $$("#shapes tr.call").length - before;
  found.focused = document.activeElement.textContent;
  // a layer, a head, a weight
  const [layer, head] = $$("#attention input[type=number]");
  change(layer, 1);
  change(head, 2);
  await settled();
  found.head = $$("#attention h3")[1].textContent;
  const [atlas, map] = $$("#attention svg");
  key(map, "ArrowDown");
  key(map, "ArrowDown");
  key(map, "ArrowRight");
  found.weight = $$("#attention output")[1].textContent;
  key(atlas, "ArrowLeft");
  await settled();
  found.beside = $$("#attention h3")[1].textContent;
  $$("#attention details").at(-1).open = true;
  await settled();
  found.table = $$("#attention details table tbody tr").length;
  // a step of decoding, in the cache and among the candidates
  button("›", part("cache")).click();
  found.kept = $("#cache .controls span.quiet").textContent;
  await settled();
  const strips = $$("#cache svg[tabindex]");
  key(strips[0], "ArrowRight");
  found.slot = $$("#cache output")[0].textContent;
  const steps = $$("#choices .token");
  steps[1].click();
  found.step = $("#choices h3").textContent;
  found.candidates = $$("#choices .steps .cand").length;
  const lens = $(".lens button[aria-pressed=true]");
  key(lens, "ArrowDown");
  found.lens = document.activeElement.getAttribute("aria-label");
  found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  found.width = innerWidth;
"""


@pytest.mark.parametrize("width", [1280, 375])
def test_a_reader_walks_through_the_page(
    document: dict[str, Any], tmp_path: Path, width: int
) -> None:
    words = document["prompt"]["words"]
    merges = [
        len(words[token["word"]]["pieces"][0]["merges"]) if token["word"] is not None else 0
        for token in document["prompt"]["tokens"]
    ]
    most = max(range(len(merges)), key=merges.__getitem__)
    found = visited(page(document), tmp_path, WALK.replace("TOKEN", str(most)), width)
    assert found["problems"] == []
    assert found["chips"] == len(merges) + 5
    assert found["pressed"] == 1
    assert f"id{document['prompt']['tokens'][most]['id']}" in found["token"]
    assert found["merged"].startswith(f"merge 1 of {merges[most]}: rank ")
    assert found["fewer"] == found["symbols"] - 1
    assert found["formula"] == "softmax(scores)"
    assert found["calls"] == 1
    assert found["focused"] == "attn.weights"
    assert found["head"] == "Layer 1, head 2"
    weight = document["attention"]["layers"][1]["heads"][2]["largest"][2][1]
    assert found["weight"].endswith(f" with {weight / 100:.2f} %")
    assert found["beside"] == "Layer 1, head 1"
    assert found["table"] == document["attention"]["rows"]
    assert found["kept"] == f"after step 1: {len(merges) + 1} tokens kept"
    assert "slot 1: position 1, " in found["slot"]
    assert found["step"].startswith("Step 1, behind ")
    assert found["candidates"] == len(document["choices"][1]["ids"])
    assert found["lens"].startswith("layer 0, step 0: ")
    assert found["overflow"] <= 0
    assert found["width"] == width


def test_hostile_text_is_shown_by_number(engine: Engine, tmp_path: Path) -> None:
    """Nothing of it runs, and no sign that turns or hides text is left in what is shown."""
    document = inspected(engine, HOSTILE, SamplingParams(max_tokens=2, temperature=1.0, seed=1))
    script = """
      $$("details").forEach((each) => { each.open = true; });
      $$("#tokens .token").forEach((chip) => chip.click());
      await settled();
      const shown = document.createTreeWalker(document.querySelector("body"), NodeFilter.SHOW_TEXT);
      const bad = [];
      for (let node = shown.nextNode(); node; node = shown.nextNode()) {
        if (node.parentElement.closest("script")) continue;
        // U+2068 and U+2069 isolate labels: they come from the page.
        if (/[\\u0000-\\u0008\\u000e-\\u001f\\u202a-\\u202e\\u2066\\u2067\\u200b\\u2028]/.test(node.data)) bad.push(node.data);
      }
      found.bad = bad;
      found.title = $("#story").textContent;
      found.images = $$("img").length;
    """
    found = visited(page(document), tmp_path, script)
    assert found["problems"] == []
    assert found["bad"] == []
    assert found["images"] == 0
    assert "⟨U+202E⟩" in found["title"]
    assert "<img src=x onerror=alert(1)>" in found["title"]


def test_several_windows_blocks_and_a_model_without_text(windowed: Engine, tmp_path: Path) -> None:
    ids = [i * 7 % 41 for i in range(21)]
    document = inspected(
        windowed, ids, SamplingParams(max_tokens=12, temperature=1.0, top_k=9, seed=2)
    )
    script = """
      change($("#attention input[type=number]"), 0);
      await settled();
      found.hatched = $$("#attention svg .gone").length;
      found.strips = $$("#cache svg[tabindex]").length;
      found.steps = $$("#choices .steps h4").map((each) => each.textContent);
      found.first = $("#tokens .token").textContent;
    """
    found = visited(page(document), tmp_path, script)
    assert found["problems"] == []
    assert found["hatched"] == 1
    assert found["strips"] == 4  # contiguous, two rings, paged
    assert found["steps"] == ["model", "temperature 1.0", "top-k 9"]
    assert found["first"] == "#00"
