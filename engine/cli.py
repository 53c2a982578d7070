"""The command line of the engine: a string or ids in, a string or tensors out.

Modules that load torch are imported by the commands that need them; `tokenize` and `detokenize`
do not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.command import check_writable, json_text, run, save_tensors
from engine.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from engine.generate import Piece, SamplingParams
    from engine.tokenizer import Tokenizer

app = typer.Typer(
    name="lockstep",
    help="A readable LLM inference engine, and the proof of every step of it.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A folder in Hugging Face layout, a .gguf file, or a name that `fetch` knows.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
MaxTokens = Annotated[int, typer.Option(help="Stop after this many tokens.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most likely token.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the k most likely tokens.")]
TopP = Annotated[float | None, typer.Option(help="Draw from the nucleus of this mass.")]
MinP = Annotated[
    float | None, typer.Option(help="Draw from tokens this likely, relative to the best.")
]
Seed = Annotated[int | None, typer.Option(help="Makes the draws repeatable.")]
Text = Annotated[str | None, typer.Option(help="Encoded with the model's special tokens.")]
Ids = Annotated[str | None, typer.Option(help="Token ids, such as 1,2,3.")]
CacheKind = Annotated[
    str, typer.Option(help="Where keys and values are kept: ring, contiguous or paged.")
]
CacheDtype = Annotated[
    str | None, typer.Option(help="int8 keeps keys and values in less memory, not exactly.")
]
BatchInvariant = Annotated[
    bool, typer.Option("--batch-invariant", help="The same bits, however tokens are cut and kept.")
]
Out = Annotated[Path, typer.Option(help="The .safetensors file to write.", show_default=False)]


# -- commands ------------------------------------------------------------------------------------


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as smollm2-135m.")],
) -> None:
    """Download a model that is known by name, check its hash, print where it lies."""
    from engine.assets import KNOWN
    from engine.models import fetch

    print(fetch(name, progress=True))
    print(f"{name}: licence {KNOWN[name].licence}", file=sys.stderr)


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to go on from.")],
    max_tokens: MaxTokens = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text; may be repeated.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap the prompt in the model's chat template.")
    ] = False,
    parse_special: Annotated[
        bool, typer.Option(help="Read special tokens in the prompt as such, not as plain text.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    cache: CacheKind = "ring",
    cache_dtype: CacheDtype = None,
    batch_invariant: BatchInvariant = False,
) -> None:
    """Go on from a prompt, printing text as it comes."""
    text = _unicode(prompt)
    params = _params(max_tokens, temperature, top_k, top_p, min_p, seed, stop or ())
    from engine import Engine

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        progress=True,
        cache=cache,
        cache_dtype=cache_dtype,
        batch_invariant=batch_invariant,
    )
    messages = [{"role": "user", "content": text}]
    if chat:
        ids = engine.tokenizer.encode_chat(messages, parse_special=parse_special)
    else:
        ids = engine.encode(text, parse_special)
    if as_json:
        print(json_text(engine.generate(ids, params).to_dict()))
        return
    for piece in engine.stream(ids, params):
        _say(piece.text)
    _say("\n")


@app.command()
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Talk to a model. /reset forgets the conversation; /exit or Ctrl-D ends it."""
    from rich.console import Console

    params = _params(max_tokens, temperature, top_k, top_p, min_p, seed)
    from engine import Engine

    engine = Engine.load(model, device=device, dtype=dtype, progress=True)
    console = Console(stderr=True)
    start = [] if system is None else [{"role": "system", "content": _unicode(system)}]
    history = list(start)
    console.print("/reset forgets the conversation, /exit or Ctrl-D ends it.", style="dim")
    while (line := _ask(console)) not in (None, "/exit"):
        if line == "/reset":
            history = list(start)
            console.print("The conversation is forgotten.", style="dim")
        elif line:
            asked = [*history, {"role": "user", "content": _unicode(line)}]
            try:
                answer = _answer(engine.stream(engine.tokenizer.encode_chat(asked), params))
            except RequestError as error:
                console.print(f"{error}, or /reset", style="red", markup=False)
                continue
            history = [*asked, {"role": "assistant", "content": answer}]


@app.command()
def tokenize(
    model: Model,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="The text.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Read the text from this file; - is standard input.")
    ] = None,
    no_special: Annotated[
        bool, typer.Option("--no-special", help="Add no special tokens around the text.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn text into token ids."""
    if (text is None) == (file is None):
        raise RequestError("tokenize needs either TEXT or --file")
    given = _unicode(text) if text is not None else _read_text(file or Path("-"))
    encoding = _tokenizer(model).encode_with_offsets(given, add_special_tokens=not no_special)
    if as_json:
        offsets = [list(pair) for pair in encoding.offsets]
        print(json_text({"ids": encoding.ids, "tokens": encoding.tokens, "offsets": offsets}))
    else:
        print(*encoding.ids)


@app.command()
def detokenize(
    model: Model,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Such as 1 2 3 or 1,2,3.")],
    skip_special: Annotated[
        bool, typer.Option("--skip-special", help="Leave special tokens out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn token ids into text."""
    wanted = [number for part in ids for number in parse_ids(part)]
    tokenizer = _tokenizer(model)
    for unknown in (number for number in wanted if tokenizer.id_to_token(number) is None):
        raise RequestError(f"token id {unknown} is unknown to the tokenizer of {model}")
    text = tokenizer.decode(wanted, skip_special_tokens=skip_special)
    if as_json:
        print(json_text({"text": text}))
    else:
        print(text)


@app.command()
def logits(
    model: Model,
    out: Out,
    text: Text = None,
    ids: Ids = None,
    dtype: Dtype = "float32",
    backend: Annotated[
        str | None, typer.Option(help="eager, sdpa or tiled.", show_default="eager")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Feed the tokens in pieces of this length.")
    ] = None,
    device: Device = "cpu",
    cache: CacheKind = "ring",
    cache_dtype: CacheDtype = None,
    batch_invariant: BatchInvariant = False,
) -> None:
    """Write the logits of every position: tensors "ids" [T] and "logits" [T, V], float32."""
    given = _text_or_ids(text, ids)
    check_writable(out)
    import torch

    from engine import Engine

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        backend="eager" if backend is None and not batch_invariant else backend,
        progress=True,
        cache=cache,
        cache_dtype=cache_dtype,
        batch_invariant=batch_invariant,
    )
    wanted = engine.tokenizer.encode(given) if isinstance(given, str) else given
    result = engine.logits(wanted, chunk=chunk)
    save_tensors({"ids": torch.tensor(wanted, dtype=torch.int64), "logits": result}, out)


@app.command()
def trace(
    model: Model,
    out: Out,
    text: Text = None,
    ids: Ids = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
) -> None:
    """Write what every probe sees in one forward pass, each tensor under its probe's name."""
    given = _text_or_ids(text, ids)
    check_writable(out)
    from engine import Engine

    # The eager backend alone has a probe on the attention scores and weights.
    engine = Engine.load(model, device=device, dtype=dtype, backend="eager", progress=True)
    wanted = engine.tokenizer.encode(given) if isinstance(given, str) else given
    save_tensors(engine.trace(wanted), out)


@app.command()
def memory(
    model: Model,
    tokens: Annotated[
        int | None, typer.Option(help="Of each sequence.", show_default="all the model can read")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences that are kept at once.")] = 1,
    cache: CacheKind = "ring",
    cache_dtype: CacheDtype = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Say what a model and its cache will take of the memory, and what is free."""
    from engine.footprint import footprint
    from engine.models import resolve

    taken = footprint(
        resolve(model, progress=True),
        tokens,
        batch,
        cache=cache,
        cache_dtype=cache_dtype,
        dtype=dtype,
        device=device,
    )
    print(json_text(taken.to_dict()) if as_json else taken)


# -- what the commands share ---------------------------------------------------------------------


def parse_ids(text: str) -> list[int]:
    """Whole numbers separated by commas or spaces; RequestError names the first that is none."""
    parts = [part for part in re.split(r"[,\s]+", text) if part]
    if not parts:
        raise RequestError("no token ids were given; write them as 1,2,3")
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,18}", part):
            raise RequestError(f"{part!r} is not a token id; ids are whole numbers such as 1,2,3")
    return [int(part) for part in parts]


def _tokenizer(model: str) -> Tokenizer:
    from engine.models import resolve
    from engine.tokenizer import Tokenizer

    # A tokenizer's own file is no model, but it is all that is needed here.
    path = Path(model)
    return Tokenizer.load(path if path.is_file() else resolve(model, progress=True))


def _params(
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    stop: Sequence[str] = (),
) -> SamplingParams:
    from engine import SamplingParams

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(_unicode(text) for text in stop),
    )


def _text_or_ids(text: str | None, ids: str | None) -> str | list[int]:
    if (text is None) == (ids is None):
        raise RequestError("give either --text or --ids")
    return _unicode(text) if text is not None else parse_ids(ids or "")


def _unicode(text: str) -> str:
    """Text from the command line; bytes that were not UTF-8 arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError("the text is not valid UTF-8") from None
    return text


def _read_text(file: Path) -> str:
    """A file's text exactly as it is: no newline is translated, no mark dropped."""
    if str(file) == "-":
        data, name = sys.stdin.buffer.read(), "standard input"
    else:
        data, name = file.read_bytes(), str(file)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not valid UTF-8 (byte {error.start})") from None


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


def main() -> None:
    sys.exit(run(app, "python -m engine", sys.argv[1:] or ["--help"]))
