"""Goldens of real tokenizers: ids, offsets and text again, over one text in many languages.

    golden/multilingual.json          the text, as a list of its lines
    golden/tokens-*/tokens.json       ids with special tokens, where each token starts and ends in
                                      characters of the text (added ones at 0, 0), and what the ids
                                      are decoded to with special tokens left out

The tokenizers themselves are not here; `lockstep fetch` gets them. Whoever writes a tokenizer can
compare without any reference: `differences` takes three answers of any engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.golden import REPOSITORY_GOLDENS, remake
from conformance.text import TextFinding
from engine.errors import ModelFileError
from engine.tokenizer import Tokenizer

TEXT_FILE = REPOSITORY_GOLDENS / "multilingual.json"

_SHOWN = 8  # tokens of a difference
_AROUND = 20  # characters


@dataclass(frozen=True)
class TokensCase:
    """A golden of the tokenizer that `lockstep fetch` knows as `asset`."""

    name: str
    asset: str


_NAMES = ("llama2", "llama3", "llama3_1", "qwen3", "gemma3", "gptoss", "deepseek_v3", "gpt4o")
_ASSETS = ("smollm2-135m", "gemma3-270m", *(f"tokenizer-{name}" for name in _NAMES))

TOKENS_CASES = tuple(
    TokensCase(f"tokens-{asset.removeprefix('tokenizer-')}", asset) for asset in _ASSETS
)


def multilingual_text() -> str:
    """The text that all of these goldens are over, some 3,500 characters."""
    lines: list[str] = json.loads(TEXT_FILE.read_text(encoding="utf-8"))
    return "\n".join(lines)


def text_sha256() -> str:
    """The hash of the text's UTF-8, which each golden names."""
    return hashlib.sha256(multilingual_text().encode()).hexdigest()


def check_tokens(folder: Path, manifest: dict[str, Any], model: Path) -> list[TextFinding]:
    """Return what this engine's tokenizer of `model` answers otherwise than a golden."""
    return findings_of(Tokenizer.load(model), folder, manifest)


def findings_of(tokenizer: Tokenizer, folder: Path, manifest: dict[str, Any]) -> list[TextFinding]:
    """Return the same of a tokenizer that is loaded already."""
    if manifest["text_sha256"] != text_sha256():
        raise ModelFileError(
            f"{folder} was made of another text than {TEXT_FILE}; {remake(folder.name)}"
        )
    encoding = tokenizer.encode_with_offsets(multilingual_text())
    again = tokenizer.decode(encoding.ids, skip_special_tokens=True)
    return list(differences(folder, encoding.ids, encoding.offsets, again))


def differences(
    folder: Path, ids: Sequence[int], offsets: Sequence[tuple[int, int]], decoded: str
) -> Iterator[TextFinding]:
    """Yield where ids, offsets and decoded text first leave a golden, each on its own.

    Offsets of other ids than the golden's say nothing, and neither does their text.
    """
    golden = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
    places = list(zip(golden["starts"], golden["ends"], strict=True))
    text = multilingual_text()
    if list(ids) != golden["ids"]:
        yield _first_difference("tokenizer.encode", text, places, golden["ids"], list(ids))
        return
    if [*map(tuple, offsets)] != places:
        yield _first_difference("tokenizer.offsets", text, places, places, [*map(tuple, offsets)])
    if decoded != golden["decoded"]:
        at = [(i, i + 1) for i in range(len(golden["decoded"]))]
        yield _first_difference(
            "tokenizer.decode", golden["decoded"], at, golden["decoded"], decoded
        )


def _first_difference(
    stage: str, text: str, places: list[tuple[int, int]], expected: Any, got: Any
) -> TextFinding:
    """Return the first items that differ, and the text around them."""
    same = 0
    while same < min(len(expected), len(got)) and expected[same] == got[same]:
        same += 1
    near = places[min(same, len(places) - 1)][0]
    shown = text[max(near - _AROUND, 0) : near + _AROUND]
    return TextFinding(
        stage,
        f"... {shown} ... (from item {same} on)",
        expected[same : same + _SHOWN],
        got[same : same + _SHOWN],
    )
