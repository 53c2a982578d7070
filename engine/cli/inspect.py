"""`lockstep inspect`: one prompt followed from text to text, as a page and as a document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.cli.sampling import Choosing, command, sampling_params
from engine.cli.shared import (
    CacheDtype,
    CacheKind,
    Compiled,
    Device,
    Dtype,
    Model,
    Quantization,
    unicode,
)
from engine.command import atomically, check_writable, json_text
from engine.errors import RequestError

#: Times the stages of a text's path elsewhere, given model, text, dtype and device: seconds by stage and phase.
Beside = Callable[[str, str, str, str], dict[str, dict[str, float]]]

#: Whom `--against` can name; the suite adds whom it knows.
BESIDE: dict[str, Beside] = {}


@dataclass(frozen=True)
class FewTokens(Choosing):
    """With as many tokens as are looked at one by one."""

    max_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 8


@command
def inspect(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to follow.")],
    choosing: FewTokens,
    out: Annotated[Path | None, typer.Option(help="Write the page here.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers here; - is standard output.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option(help="Read special tokens in the prompt as such, not as plain text.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="Time the same text elsewhere, too: transformers.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    cache: CacheKind = "ring",
    cache_dtype: CacheDtype = None,
    compiled: Compiled = False,
    quantization: Quantization = None,
) -> None:
    """Show what becomes of a prompt: tokens, shapes, attention, cache, choices, time and memory."""
    text = unicode(prompt)
    if out is None and json_file is None:
        raise RequestError("an inspection is written somewhere: give --out or --json")
    for file in (out, json_file):
        if file is not None and str(file) != "-":
            check_writable(file)
    if against is not None and against not in BESIDE:
        known = f"; there is {', '.join(BESIDE)}" if BESIDE else " here"
        raise RequestError(f"nothing to time {against!r} by{known}")
    params = sampling_params(choosing)
    from engine import Engine
    from engine.inspect import inspected, page

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        progress=True,
        cache=cache,
        cache_dtype=cache_dtype,
        compiled=compiled,
        quantization=quantization,
    )
    if chat:
        messages = [{"role": "user", "content": text}]
        text, parse_special = engine.tokenizer.render_chat(messages), True
    document = inspected(engine, text, params, parse_special=parse_special)
    if against is not None:
        document["time"]["beside"] = {against: BESIDE[against](model, text, dtype, device)}
    if out is not None:
        with atomically(out) as draft:
            draft.write_text(page(document), encoding="utf-8")
        print(f"{out}: {_summary(document)}")
    if json_file is not None and str(json_file) != "-":
        with atomically(json_file) as draft:
            draft.write_text(json_text(document), encoding="utf-8")
    elif json_file is not None:
        print(json_text(document))


def _summary(document: dict[str, Any]) -> str:
    time = document["time"]
    return (
        f"{len(document['prompt']['tokens'])} tokens read and {len(document['answer'])} answered in "
        f"{time['whole']:.2f} s, of which the stages are {time['accounted']:.1%}"
    )
