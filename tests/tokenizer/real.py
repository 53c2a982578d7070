"""Real tokenizers, each loaded once per process: one takes a second and a hundred megabytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engine.tokenizer import Tokenizer


@cache
def load(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def chat_template(tokenizer: Tokenizer) -> tuple[str, dict[str, str]]:
    """The template of a tokenizer's file ("" where it has none) and the tokens it is told."""
    chat = tokenizer._chat
    return chat._templates.get("default", ""), dict(chat._special_tokens)
