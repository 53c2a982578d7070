"""The command that the engine's others are part of; the conformance suite adds its own."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="lockstep",
    help="A readable LLM inference engine, and the proof of every step of it.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
