"""A page in headless Chromium: a script is run in it, and what that finds comes back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

_BEFORE = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => problems.push(`policy: ${event.violatedDirective}`));
for (const kind of ["error", "warn"]) console[kind] = (...said) => problems.push(said.join(" "));
</script>"""

_AFTER = """<script>
const settled = () => new Promise((done) => setTimeout(done, 200));
const key = (element, name) => element.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const change = (input, value) => { input.value = value; input.dispatchEvent(new Event("change", { bubbles: true })); };
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const button = (text, from) => $$("button", from).find((each) => each.textContent.trim().startsWith(text));
(async () => {
  await settled();
  const found = {};
  try { %s } catch (error) { problems.push(String(error.stack)); }
  await settled();
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify({ ...found, problems });
  document.body.append(result);
})();
</script></body>"""


#: Windows are never as narrow as a phone; a frame is, and what is asked of the width is asked of it.
_FRAME = """<!doctype html><iframe style="border:0;width:%dpx;height:900px" srcdoc="%s"></iframe>
<script>setInterval(() => {
  const found = document.querySelector("iframe").contentDocument.getElementById("found");
  if (found && !document.getElementById("found")) document.body.append(document.importNode(found, true));
}, 100)</script>"""


def visited(page: str, folder: Path, script: str, width: int = 1280) -> dict[str, Any]:
    """What the script, the body of an async function, puts into `found`; and `problems` of the page.

    Skips the test, with the reason, where there is no Chromium.
    """
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("no Chromium is installed here, and the page is looked at in one")
    head = page.replace("<title>", f"{_BEFORE}<title>", 1)
    assert head.count("</body>") == 1
    file = folder / "visited.html"
    text = head.replace("</body>", _AFTER % script)
    file.write_text(_FRAME % (width, escape(text)), encoding="utf-8")
    done = subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1400,1000",
            "--virtual-time-budget=20000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, f"the page came to nothing: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(unescape(match[1]))
    return found
