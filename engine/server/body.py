"""The body of a request: JSON as the standard has it (RFC 8259), read once, and strictly.

Python's reader takes more than that: NaN, numbers beyond any float, halves of characters. What it takes
an answer, a log or a template would have to write again, so that it is refused here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from engine.server.errors import ApiError

MOST_DEPTH = 64  # arrays and objects within each other


class StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """An endpoint whose body is JSON, and says so: a form that a website sends is none."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            request = StrictRequest(request.scope, request.receive)
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind != "application/json":
                    raise ApiError(415, "the body must be JSON: set Content-Type: application/json")
                if not await request.body():
                    raise ApiError(400, "the body is empty; it must be a JSON object")
            return await handle(request)

        return strictly


def read_json(body: bytes) -> Any:
    """What a body says; ApiError 400 with one sentence where it is no JSON."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 (byte {error.start})") from None
    try:
        document = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except json.JSONDecodeError as error:
        message = f"the body is not valid JSON: {error.msg} at character {error.pos}"
        raise ApiError(400, message) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python reads no whole numbers of thousands of digits
        raise ApiError(400, "the body has a number of thousands of digits") from None
    _check_depth(document)
    if "\\u" in text:
        _check_characters(document)
    return document


def _refused(name: str) -> NoReturn:
    raise ApiError(400, f"the body is not valid JSON: it has {name}, which is no number there")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ApiError(400, f"the body has a number that is too large: {text:.40}")
    return number


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise _too_deep()


def _check_characters(document: Any) -> None:
    """Half of a character can be escaped in JSON and written nowhere else."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError(400, "the body has half of a character, a lone surrogate") from None


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested too deeply: {MOST_DEPTH} levels are the most")
