"""Whole answers as JSON: made beside the event loop, where a large one would hold up everyone's streams.

That of 128 answers with log-probabilities has ten million characters. A thread alone does not help: Python's
encoder lets no other one run until it is done, so that it is given one piece after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

#: Down to a token's log-probabilities, as in choices[0].logprobs.content[0].
DEPTH = 5

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def document(content: Any) -> Response:
    """The response that is this as JSON; to be called in a thread where it may be large."""
    body = "".join(pieces(content, DEPTH)).encode()
    return Response(body, media_type="application/json")


def pieces(content: Any, depth: int) -> Iterator[str]:
    """The text of a document: what lies so deep in it is written at once, all above it bit by bit."""
    if depth and isinstance(content, dict):
        before = "{"
        for name, inner in content.items():
            yield f"{before}{_encode(name)}:"
            yield from pieces(inner, depth - 1)
            before = ","
        yield "}" if content else "{}"
    elif depth and isinstance(content, list):
        before = "["
        for inner in content:
            yield before
            yield from pieces(inner, depth - 1)
            before = ","
        yield "]" if content else "[]"
    else:
        yield _encode(content)
