"""Legal variants of the reference, judged as an engine is: it may not be blamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from conformance.candidate import Candidate
from conformance.golden import Golden
from conformance.oracle.model import Oracle, knows_sdpa, load
from conformance.reorder import Variant
from conformance.tally import MEASURED, Say, tally

PADS = (0, 0, 1, 4, 7)


def write_tallies(count: int, seed: int, out: Path, folders: Sequence[Path], say: Say) -> None:
    """The tallies of `count` variants in each dtype, as a JSON list in `out`."""
    models: dict[tuple[str, torch.dtype], Any] = {}

    def make(golden: Golden, dtype: torch.dtype, variant: Variant) -> Candidate:
        key = golden.case, dtype
        if key not in models:
            models[key] = load(golden.folder, dtype)
        model = models[key]
        return Oracle(model, variant if knows_sdpa(model) else replace(variant, attention="eager"))

    found = [tally("transformers", make, folders, d, count, seed, say, PADS) for d in MEASURED]
    out.write_text(json.dumps([asdict(t) for t in found]))
