"""`lockstep serve`: the model behind the API that OpenAI's clients speak."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from engine.cli.app import app
from engine.cli.shared import (
    BatchInvariant,
    CacheDtype,
    Compiled,
    Device,
    Dtype,
    Model,
    Quantization,
)
from engine.errors import LockstepError

#: All others wait while a pass reads a part of someone's prompt: docs/measurements/serving.md.
CPU_STEP_TOKENS = 64


@app.command()
def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="LOCKSTEP_API_KEY",
            help="The key that every request must bring.",
            show_default=False,
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let other machines ask without a key.")
    ] = False,
    served_name: Annotated[
        str | None, typer.Option(help="The model's name in the API.", show_default="MODEL")
    ] = None,
    max_queue: Annotated[
        int, typer.Option(help="Answers that may wait besides those that run.")
    ] = 128,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request's body.")] = 2**20,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds that a request may take.")
    ] = 600.0,
    shutdown_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that running requests are given when the server is told to stop."
        ),
    ] = 30.0,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="A site whose scripts may ask; may be repeated.")
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log what is asked and answered.")
    ] = False,
    no_docs: Annotated[
        bool, typer.Option("--no-docs", help="No page about the API at /docs.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    step_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tokens of a forward pass: with fewer, answers wait less while a prompt is read.",
            show_default=f"{CPU_STEP_TOKENS}; on a GPU 2048",
        ),
    ] = None,
    cache_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the KV cache has room for.")
    ] = None,
    cache_dtype: CacheDtype = None,
    batch_invariant: BatchInvariant = False,
    compiled: Compiled = False,
    quantization: Quantization = None,
) -> None:
    """Serve a model over the OpenAI API, until told to stop."""
    try:
        from engine.server import Settings
        from engine.server import serve as listen
    except ImportError as error:
        raise LockstepError(
            f"serving needs the package {error.name}: pip install 'lockstep-llm[serve]'"
        ) from error
    settings = Settings(
        served_name=served_name or model,
        api_key=api_key,
        max_queue=max_queue,
        max_body=max_body,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
        cors_origins=tuple(cors_origin or ()),
        log_prompts=log_prompts,
        docs=not no_docs,
        no_auth=no_auth,
    )
    settings.check_exposed(host)
    logging.basicConfig(format="%(asctime)s %(message)s")  # on standard error
    logging.getLogger("lockstep.server").setLevel(logging.INFO)
    from engine import Engine

    engine = Engine.load(
        model,
        device=device,
        dtype=dtype,
        progress=True,
        cache="paged",
        cache_tokens=cache_tokens,
        cache_dtype=cache_dtype,
        batch_invariant=batch_invariant,
        compiled=compiled,
        quantization=quantization,
    )
    engine.step_tokens = step_tokens or (CPU_STEP_TOKENS if device == "cpu" else engine.step_tokens)
    if listen(engine, settings, host, port):
        os._exit(0)  # an inspection takes minutes, and its client is gone
