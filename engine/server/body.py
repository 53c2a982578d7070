"""The body of a request: JSON as the standard has it (RFC 8259), read once, and strictly.

Python's reader takes more than that: NaN, numbers beyond any float, halves of characters. An answer, a log
or a template might have to write those again, so that they are refused here, by the field they are in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from engine.server.errors import ApiError

MOST_DEPTH = 64  # arrays and objects within each other

_Place = tuple[str | int, ...]


class StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """An endpoint whose body is JSON, and says so: a form that a website sends is none."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(given: Request) -> Response:
            request = StrictRequest(given.scope, given.receive)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(415, "the body must be JSON: set Content-Type: application/json")
            if not await request.body():
                raise ApiError(400, "the body is empty; it must be a JSON object")
            return await handle(request)

        return strictly


def read_json(body: bytes) -> Any:
    """What a body says; ApiError 400 with one sentence where it is no JSON."""
    suspicious = False

    def number(text: str) -> float:
        nonlocal suspicious
        value = float(text)
        suspicious |= not math.isfinite(value)
        return value

    try:
        text = body.decode()
        document = json.loads(text, parse_float=number, parse_constant=number)
        if suspicious or "\\u" in text:
            _check(document)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        message = f"the body is not valid JSON: {error.msg} at character {error.pos}"
        raise ApiError(400, message) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python reads no whole numbers of thousands of digits
        raise ApiError(400, "the body has a number of thousands of digits") from None
    _check_depth(document)
    return document


def _check(document: Any) -> None:
    for place, value in _leaves(document, ()):
        where = ".".join(map(str, place)) or "the body"
        if isinstance(value, float) and not math.isfinite(value):
            raise ApiError(400, f"{where} is no number that JSON has", param=where)
        if isinstance(value, str) and not _is_text(value):
            raise ApiError(400, f"{where} has half of a character, a lone surrogate", param=where)


def _leaves(value: Any, place: _Place) -> Iterator[tuple[_Place, Any]]:
    """What holds nothing else, names of fields among it, with its place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield place, name
            yield from _leaves(inner, (*place, name if _is_text(name) else "?"))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*place, i))
    else:
        yield place, value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(400, f"the body is nested too deeply: {MOST_DEPTH} levels are the most")
