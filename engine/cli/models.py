"""`lockstep fetch` and `lockstep memory`: models before they are read."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from engine.cli.app import app
from engine.cli.shared import CacheDtype, CacheKind, Device, Dtype, Model
from engine.command import json_text


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
