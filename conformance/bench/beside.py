"""The reference's time for the stages of a text's path, beside this engine's on the page of an inspection."""

from __future__ import annotations

from conformance.bench.forms import forms
from conformance.bench.run import require_reference, unpacked
from conformance.bench.stages import PER_LAYER
from conformance.bench.worker import Worker
from engine.models import resolve
from engine.weights import open_checkpoint

#: What a bench calls a stage, and what an inspection does.
_NAMES = {
    "embedding": "embedding",
    "attention": "attention",
    "cache": "cache",
    "feed-forward": "feed-forward",
    "head": "LM head",
    "whole pass": "whole pass",
}


def reference(model: str, text: str, dtype: str, device: str) -> dict[str, dict[str, float]]:
    """Seconds of transformers by stage, for the prompt and for one step; a layer's stages for all layers."""
    (form,) = forms(["transformers"], dtype)
    require_reference()
    source = resolve(model)
    layers = open_checkpoint(source).spec.n_layers
    with (
        unpacked(source, [form], dtype, _silent) as path,
        Worker(form.name, form.module, form.settings(str(path), device, None), _silent) as worker,
    ):
        figures = worker.ask("stages", text=text)
    found: dict[str, dict[str, float]] = {
        "tokenize": {"prompt": figures["tokenize"]["seconds"]},
        "detokenize": {"step": figures["detokenize"]["seconds"]},
    }
    for theirs, ours in _NAMES.items():
        times = layers if theirs in PER_LAYER else 1
        found[ours] = {
            phase: figures[f"{phase}.{theirs}"]["seconds"] * times
            for phase in ("prompt", "step")
            if f"{phase}.{theirs}" in figures
        }
    # Of attention the cache is a part there.
    for phase, taken in found["cache"].items():
        found["attention"][phase] -= taken
    return found


def _silent(message: str) -> None:
    """Nobody is told how far it is: it takes seconds."""
