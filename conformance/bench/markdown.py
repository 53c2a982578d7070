"""A run as Markdown, for `docs/measurements`: made of its JSON document, so that old ones can be written, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.bench.stages import PASS_STAGES, TEXT_STAGES

Document = dict[str, Any]

_RIVALS = {
    "transformers": "times transformers",
    "transformers-compiled": "times its best form",
    "eager": "times eager",
    "limit": "of the limit",
}
_GROWTH = """A step reads all weights once and the keys and values of everything in view, so its time should be a
line over the tokens in view: as high as the weights' bytes over the memory's bandwidth, and as steep as a token's
bytes in the cache over it. Beside that is the line through what was measured, by least squares."""


def markdown(document: Document, title: str) -> str:
    """A heading, machine and versions, and a table for each thing that was measured."""
    model, seen = document["model"], document["environment"]
    about = (
        f"{model['name']}, {model['parameters'] / 1e6:,.1f} million parameters, {document['dtype']}, "
        f"{document['rounds']} rounds in turns. {_where(seen)}"
    )
    heading = f"# {seen['date'][:10]}: {title}"
    return "\n".join([heading, "", about, "", *tables(document)]) + "\n"


def tables(document: Document) -> Iterator[str]:
    """What was measured, without a heading."""
    limits = document["limits"]
    rates = ", ".join(f"{dtype} {rate / 1e9:,.0f}" for dtype, rate in limits["matrix"].items())
    yield (
        f"The machine reads {limits['bandwidth'] / 1e9:,.1f} GB/s ({limits['row'] / 1e9:,.1f} in a product of "
        f"one row) and multiplies, in GFLOP/s: {rates}."
    )
    yield from _scenarios(document)
    yield from _forms(document)
    if document["stages"]:
        yield from _stages(document["stages"])
    if document["growth"]:
        yield from _growth(document["growth"])
    for note in document["skipped"]:
        yield from ("", f"Not timed: {note}.")


def _where(seen: dict[str, str]) -> str:
    return (
        f"{seen['processor']}, {seen['threads']} threads, device {seen['device']}, torch {seen['torch']}, "
        f"transformers {seen['transformers']}, Python {seen['python']}."
    )


def _heading(*columns: str) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def _scenarios(document: Document) -> Iterator[str]:
    against = {ratio["against"] for ratio in document["ratios"]}
    rivals = [rival for rival in _RIVALS if rival in against]
    yield from _heading("scenario", "form", "median", *(_RIVALS[name] for name in rivals), "ids")
    for scenario in document["scenarios"]:
        for form, figures in scenario["forms"].items():
            rate = figures["tokens_per_second"]
            median = f"{rate:,.1f} tokens/s" if rate else _milliseconds(figures["median"])
            cells = [_ratio(document, scenario["name"], form, rival) for rival in rivals]
            ids = figures["ids"] or ""
            yield f"| {scenario['name']} | {form} | {median} | {' | '.join([*cells, ids])} |"


def _ratio(document: Document, scenario: str, form: str, against: str) -> str:
    wanted = {"scenario": scenario, "form": form, "against": against}
    for ratio in document["ratios"]:
        if wanted.items() <= ratio.items():
            return f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"
    return ""


def _forms(document: Document) -> Iterator[str]:
    columns = ("loaded in", "first answer", "libraries, MiB", "peak, MiB", "peak of an answer, MiB")
    yield from _heading("start of", *columns)
    for form in document["forms"]:
        start = form["start"]
        taken = [f"{form['memory'][kind] / 2**20:,.0f}" for kind in ("before", "start", "answer")]
        times = [_milliseconds(start["loaded"]), _milliseconds(start["first_answer"])]
        yield f"| {form['name']} | {' | '.join([*times, *taken])} |"


def _stages(stages: Document) -> Iterator[str]:
    load, tokenize, detokenize = TEXT_STAGES
    passes = [f"{kind}.{stage}" for kind in ("prompt", "step") for stage in PASS_STAGES]
    columns = [column for form in stages for column in (form, "tensors, KiB")]
    yield from _heading("stage", *columns)
    for stage in (load, tokenize, *passes, detokenize):
        cells = []
        for figures in stages.values():
            found = figures.get(stage, {"seconds": None, "bytes": None})
            cells.append("" if found["seconds"] is None else _milliseconds(found["seconds"]))
            cells.append("" if found["bytes"] is None else f"{found['bytes'] / 2**10:,.0f}")
        yield f"| {stage.replace('.', ': ')} | {' | '.join(cells)} |"


def _growth(growth: Document) -> Iterator[str]:
    for what, kind in (
        ("tokens in view of a step", "steps"),
        ("tokens of a prompt", "prefills"),
        ("answers at once in a step", "batches"),
    ):
        points = growth[kind]
        forms = list(dict.fromkeys(point["form"] for point in points))
        yield from _heading(what, *forms, "at least")
        for size in dict.fromkeys(point["size"] for point in points):
            row = {point["form"]: point for point in points if point["size"] == size}
            cells = [_milliseconds(row[form]["seconds"]) if form in row else "" for form in forms]
            least = _milliseconds(next(iter(row.values()))["limit"])
            yield f"| {size:,} | {' | '.join([*cells, least])} |"
    yield from ("", *_GROWTH.splitlines())
    yield from _heading("a step of", "height", "expected", "per 1,000 tokens in view", "expected")
    for form, line in growth["lines"].items():
        expected = growth["expected"][form]
        slopes = [1000 * line["slope"], 1000 * expected["slope"]]
        times = map(_milliseconds, [line["height"], expected["height"], *slopes])
        yield f"| {form} | {' | '.join(times)} |"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"
