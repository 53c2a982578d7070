"""A run on a GPU as Markdown: what ran, what each part proved, what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conformance.bench.gpu import Done


def markdown(done: Sequence[Done]) -> str:
    return "\n".join(_lines(done)) + "\n"


def _lines(done: Sequence[Done]) -> Iterator[str]:
    yield "# The engine on a GPU"
    yield ""
    for seen in (part.document["environment"] for part in done if part.document):
        yield ", ".join(f"{key} {value}" for key, value in seen.items()) + "."
        yield ""
        break
    yield "| part | outcome | seconds | |"
    yield "|---|---|---|---|"
    for part in done:
        yield f"| {part.name} | {part.outcome} | {part.seconds:.0f} | {_said(part)} |"
    for part in done:
        if part.document and "scenarios" in part.document:
            yield from _timed(part.name, part.document)


def _said(part: Done) -> str:
    if part.document and "verdict" in part.document:
        cases = part.document["cases"]
        return f"{part.document['verdict']}: {len(cases)} runs, {len(part.document['culprits'])} culprits"
    return part.says.replace("|", "\\|")


def _timed(name: str, document: dict[str, Any]) -> Iterator[str]:
    """The tables of a document of `lockstep bench --json`."""
    limits = document["limits"]
    rates = ", ".join(f"{dtype} {rate / 1e12:,.1f}" for dtype, rate in limits["matrix"].items())
    yield ""
    yield f"## {name}: {document['model']['parameters'] / 1e9:.2f} billion parameters, {document['dtype']}"
    yield ""
    yield f"Memory {limits['bandwidth'] / 1e9:,.0f} GB/s, matrices in TFLOP/s: {rates}. {document['rounds']} rounds."
    yield ""
    yield "| scenario | form | median | times transformers | times its compiled form | of the limit | ids |"
    yield "|---|---|---|---|---|---|---|"
    for scenario in document["scenarios"]:
        for form, figures in scenario["forms"].items():
            rate = figures["tokens_per_second"]
            median = f"{rate:,.1f} tokens/s" if rate else f"{1e3 * figures['median']:.1f} ms"
            rivals = ("transformers", "transformers-compiled", "limit")
            ratios = [_ratio(document, scenario["name"], form, rival) for rival in rivals]
            yield f"| {scenario['name']} | {form} | {median} | {' | '.join(ratios)} | {figures['ids'] or ''} |"
    if growth := document["growth"]:
        yield from _growth(growth)


def _ratio(document: dict[str, Any], scenario: str, form: str, against: str) -> str:
    wanted = {"scenario": scenario, "form": form, "against": against}
    for ratio in document["ratios"]:
        if wanted.items() <= ratio.items():
            return f"{ratio['median']:.2f}"
    return ""


def _growth(growth: dict[str, Any]) -> Iterator[str]:
    for what, kind in (
        ("tokens in view of a step", "steps"),
        ("tokens of a prompt", "prefills"),
        ("answers at once in a step", "batches"),
    ):
        yield ""
        yield f"| {what} | form | ms | at least, ms |"
        yield "|---|---|---|---|"
        for point in growth[kind]:
            seconds, limit = 1e3 * point["seconds"], 1e3 * point["limit"]
            yield f"| {point['size']:,} | {point['form']} | {seconds:.2f} | {limit:.2f} |"
