"""What the commands share: options by their types, and how ids and texts are read."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from engine.errors import RequestError

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
CacheKind = Annotated[
    str, typer.Option(help="Where keys and values are kept: ring, contiguous or paged.")
]
CacheDtype = Annotated[
    str | None, typer.Option(help="int8 keeps keys and values in less memory, not exactly.")
]
BatchInvariant = Annotated[
    bool, typer.Option("--batch-invariant", help="The same bits, however tokens are cut and kept.")
]
Compiled = Annotated[
    bool,
    typer.Option(
        "--compiled",
        help="Decode by compiled graphs: faster, after a wait when a shape is new.",
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(help="int8 or int4 keeps weights in 1 or about 0.7 bytes a number, not exactly."),
]


def parse_ids(text: str) -> list[int]:
    """Whole numbers separated by commas or spaces; RequestError names the first that is none."""
    parts = [part for part in re.split(r"[,\s]+", text) if part]
    if not parts:
        raise RequestError("no token ids were given; write them as 1,2,3")
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,18}", part):
            raise RequestError(f"{part!r} is not a token id; ids are whole numbers such as 1,2,3")
    return [int(part) for part in parts]


def unicode(text: str) -> str:
    """Text from the command line; bytes that were not UTF-8 arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError("the text is not valid UTF-8") from None
    return text
