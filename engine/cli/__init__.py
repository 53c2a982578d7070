"""The command line of the engine: a string or ids in, a string or tensors out.

Modules that load torch are imported by the commands that need them; `tokenize` and `detokenize`
do not.
"""

from __future__ import annotations

import sys

from engine.cli import answers, inspect, models, serve, tensors, words
from engine.cli.app import app
from engine.cli.shared import parse_ids
from engine.command import run

__all__ = ["answers", "app", "inspect", "main", "models", "parse_ids", "serve", "tensors", "words"]


def main() -> None:
    sys.exit(run(app, "python -m engine", sys.argv[1:] or ["--help"]))
