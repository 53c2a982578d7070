"""Real tokenizers, each loaded once per process: one takes a second and a hundred megabytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engine.tokenizer import Tokenizer


@cache
def load(path: Path) -> Tokenizer:
    return Tokenizer.load(path)
