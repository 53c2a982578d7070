"""Faults that a real model's long prompts show: its window is 512, and no tiny golden has that number."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, fault

_WINDOW = 'window = config.optional_integer("sliding_window", 4096)'


def _window(name: str, what: str, change: str) -> Mutant:
    return fault(
        name,
        what,
        "families that take a window to be inclusive, or not",
        "families/gemma3_text.py",
        _WINDOW,
        _WINDOW + change,
        "logits",
        family="gemma3-270m",
    )


REAL: tuple[Mutant, ...] = (
    _window("gemma3-270m-window-513", "sees 513 tokens where the file says 512", " + 1"),
    _window("gemma3-270m-window-511", "sees 511 tokens where the file says 512", " - 1"),
)
