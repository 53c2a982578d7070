"""A server of the OpenAI API in a thread, with this engine in it: loopback, and as small as it can be.

It answers in vLLM's way with ids and log probabilities; a test may take those from it, or spoil them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import torch

from engine.generate import Engine, SamplingParams

#: Changes an answer's choice on its way out, given the request.
Spoil = Callable[[dict[str, Any], dict[str, Any]], None]


def fair(request: dict[str, Any], choice: dict[str, Any]) -> None:
    """Changes nothing."""


@contextmanager
def serving(
    engine: Engine, *, spoil: Spoil = fair, ids: bool = True, status: int = 200
) -> Iterator[str]:
    """The base of a server that answers with `engine`; without `ids` as OpenAI's own, text alone."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, {"data": [{"id": "stub"}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if status != 200:
                self.answer(status, {"error": "out of order"})
            elif not ids and "return_token_ids" in request:
                self.answer(400, {"error": "unknown field return_token_ids"})
            else:
                choice = complete(engine, request)
                spoil(request, choice)
                self.answer(200, {"choices": [choice]})

        def answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@torch.inference_mode()
def complete(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """One choice as vLLM words it."""
    prompt = request["prompt"]
    params = SamplingParams(
        max_tokens=request["max_tokens"], ignore_eos=request.get("ignore_eos", False)
    )
    done = engine.generate(prompt, params)
    choice: dict[str, Any] = {"text": done.text}
    if request.get("return_token_ids"):
        fed = prompt if isinstance(prompt, list) else engine.tokenizer.encode(prompt)
        logits = engine.decoder(torch.tensor([fed]), engine.new_cache(len(fed)), last=1)
        best = logits[0, -1].log_softmax(-1).topk(request["logprobs"])
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        choice |= {
            "token_ids": done.token_ids,
            "prompt_token_ids": fed,
            "logprobs": {"top_logprobs": [{f"token_id:{token}": lp for token, lp in pairs}]},
        }
    return choice
