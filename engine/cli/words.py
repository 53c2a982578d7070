"""`lockstep tokenize` and `lockstep detokenize`: text to ids and back, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.cli.app import app
from engine.cli.shared import Model, parse_ids, unicode
from engine.command import json_text
from engine.errors import RequestError

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


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
    given = unicode(text) if text is not None else _read_text(file or Path("-"))
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


def _tokenizer(model: str) -> Tokenizer:
    from engine.models import resolve
    from engine.tokenizer import Tokenizer

    # A tokenizer's own file is no model, but it is all that is needed here.
    path = Path(model)
    return Tokenizer.load(path if path.is_file() else resolve(model, progress=True))


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
