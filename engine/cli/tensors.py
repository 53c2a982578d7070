"""`lockstep logits` and `lockstep trace`: what a model computes, as a safetensors file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.cli.app import app
from engine.cli.shared import (
    BatchInvariant,
    CacheDtype,
    CacheKind,
    Compiled,
    Device,
    Dtype,
    Model,
    Quantization,
    parse_ids,
    unicode,
)
from engine.command import check_writable, save_tensors
from engine.errors import RequestError

Text = Annotated[str | None, typer.Option(help="Encoded with the model's special tokens.")]
Ids = Annotated[str | None, typer.Option(help="Token ids, such as 1,2,3.")]
Out = Annotated[Path, typer.Option(help="The .safetensors file to write.", show_default=False)]


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
    compiled: Compiled = False,
    quantization: Quantization = None,
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
        compiled=compiled,
        quantization=quantization,
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


def _text_or_ids(text: str | None, ids: str | None) -> str | list[int]:
    if (text is None) == (ids is None):
        raise RequestError("give either --text or --ids")
    return unicode(text) if text is not None else parse_ids(ids or "")
