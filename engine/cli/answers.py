"""`lockstep generate` and `lockstep chat`: text in, text out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.cli.beams import Searching
from engine.cli.sampling import Answers, Choosing, LongChoosing, command, sampling_params
from engine.cli.shared import (
    BatchInvariant,
    CacheDtype,
    CacheKind,
    Compiled,
    Device,
    Dtype,
    Model,
    Quantization,
    unicode,
)
from engine.cli.structured import Structured
from engine.command import json_text
from engine.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from engine.generate import Piece
    from engine.generate.scheduler import Counters
    from engine.generate.speculation import Speculation


@command
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to go on from.")],
    choosing: Choosing,
    answers: Answers,
    structured: Structured,
    searching: Searching,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option(help="Read special tokens in the prompt as such, not as plain text.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; of several answers a list.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    cache: CacheKind = "ring",
    cache_dtype: CacheDtype = None,
    batch_invariant: BatchInvariant = False,
    compiled: Compiled = False,
    quantization: Quantization = None,
    prompt_lookup: Annotated[
        bool,
        typer.Option(
            "--prompt-lookup",
            help="Draft what followed the last tokens before: the same answer, sooner where it repeats.",
        ),
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Draft with a smaller model of the same vocabulary."),
    ] = None,
) -> None:
    """Go on from a prompt, printing text as it comes; several answers when they are done."""
    text = unicode(prompt)
    params = sampling_params(choosing, answers, structured, searching)
    if not as_json and (params.logprobs, params.prompt_logprobs) != (None, None):
        raise RequestError("log-probabilities are part of the JSON document: add --json")
    speculation = _speculation(prompt_lookup, draft)
    if speculation is not None and params.beams is not None:
        raise RequestError("a beam search drafts nothing: leave out --prompt-lookup and --draft")
    from engine import Engine

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        progress=True,
        cache=cache,
        cache_dtype=cache_dtype,
        batch_invariant=batch_invariant,
        compiled=compiled,
        quantization=quantization,
        speculation=speculation,
    )
    asked: str | list[int] = text
    if chat:
        messages = [{"role": "user", "content": text}]
        asked = engine.tokenizer.encode_chat(messages, parse_special=parse_special)
    if as_json or params.answers > 1 or params.beams is not None:
        _show(engine.generate(asked, params, parse_special=parse_special), as_json)
    else:
        for piece in engine.stream(asked, params, parse_special=parse_special):
            _say(piece.text)
        _say("\n")
    if speculation is not None:
        _say_accepted(engine.counters)


@command
def chat(
    model: Model,
    choosing: LongChoosing,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    compiled: Compiled = False,
    quantization: Quantization = None,
) -> None:
    """Talk to a model. /reset forgets the conversation; /exit or Ctrl-D ends it."""
    from rich.console import Console

    params = sampling_params(choosing)
    from engine import Engine

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        progress=True,
        compiled=compiled,
        quantization=quantization,
    )
    console = Console(stderr=True)
    start = [] if system is None else [{"role": "system", "content": unicode(system)}]
    history = list(start)
    console.print("/reset forgets the conversation, /exit or Ctrl-D ends it.", style="dim")
    while (line := _ask(console)) not in (None, "/exit"):
        if line == "/reset":
            history = list(start)
            console.print("The conversation is forgotten.", style="dim")
        elif line:
            asked = [*history, {"role": "user", "content": unicode(line)}]
            try:
                answer = _answer(engine.stream(engine.tokenizer.encode_chat(asked), params))
            except RequestError as error:
                console.print(f"{error}, or /reset", style="red", markup=False)
                continue
            history = [*asked, {"role": "assistant", "content": answer}]


def _speculation(prompt_lookup: bool, draft: str | None) -> Speculation | None:
    from engine import DraftModel, PromptLookup

    if prompt_lookup and draft is not None:
        raise RequestError(
            "tokens are drafted by one of them: give either --prompt-lookup or --draft"
        )
    if draft is not None:
        return DraftModel(draft)
    return PromptLookup() if prompt_lookup else None


def _say_accepted(counters: Counters) -> None:
    """How many drafts were what was chosen, on standard error."""
    accepted, drafted = counters.accepted, counters.drafted
    share = f" ({100 * accepted / drafted:.0f} %)" if drafted else ""
    print(f"accepted {accepted} of {drafted} drafted tokens{share}", file=sys.stderr)


def _show(done: Any, as_json: bool) -> None:
    """One answer, or a list of several one after another."""
    several = isinstance(done, list)
    if as_json:
        print(json_text([one.to_dict() for one in done] if several else done.to_dict()))
    elif several:
        for one in done:
            print(f"--- {one.index + 1} of {len(done)} ---\n{one.text}")
    else:
        print(done.text)


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ask(console: Console) -> str | None:
    """The user's next line; None at the end of the input."""
    try:
        return str(console.input("[bold green]>[/] " if sys.stdin.isatty() else "")).strip()
    except EOFError:
        return None


def _answer(pieces: Iterator[Piece]) -> str:
    """Prints an answer as it comes; Ctrl-C cuts it short and the conversation goes on."""
    said = ""
    try:
        for piece in pieces:
            _say(piece.text)
            said += piece.text
    except KeyboardInterrupt:
        pass
    _say("\n")
    return said
