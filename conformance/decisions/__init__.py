"""Sampling, stopping and log-probabilities in lockstep: each stage is given the reference's inputs.

So a fault is blamed on its own stage. The answers come from the decisions golden; see
`conformance.oracle.decisions`, which writes them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from conformance.decisions import answers, sampling
from conformance.decisions.question import differences
from conformance.decisions.sampling import p_value
from conformance.text import TextFinding

__all__ = ["STAGES", "check_decisions", "p_value"]

#: In the order in which logits meet them; the first with a finding is the one to look at.
STAGES = (
    *(f"sampling.{stage}" for stage in sampling.STAGES),
    "tokenizer.stream",
    "stopping.text",
    "stopping.max_tokens",
    "sampling.history",
    "stopping.eos",
    "stopping.stop_ids",
    "stopping.stop_text",
    "stopping.min_tokens",
    "stopping.reason",
    "stopping.usage",
    "logprobs",
)


def check_decisions(folder: Path) -> list[TextFinding]:
    """Returns what differs from the golden's answers, in the order of the stages.

    A stage that raises has answered with its error. An error while loading is the caller's.
    """
    golden = json.loads((folder / "decisions.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "decisions.safetensors")
    findings: list[TextFinding] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-") as models:
        for questions in (
            sampling.about_each(golden, tensors),
            sampling.about_all(golden, tensors),
            sampling.about_choices(golden, tensors),
            answers.about_text(golden, tensors, folder, Path(models)),
            answers.about_endings(golden, tensors, folder, Path(models)),
            answers.about_history(golden, tensors, folder, Path(models)),
            answers.about_min_tokens(golden, tensors, folder, Path(models)),
            answers.about_logprobs(golden, tensors, folder, Path(models)),
        ):
            findings += differences(questions, {found.stage for found in findings})
    return sorted(findings, key=lambda found: STAGES.index(found.stage))
