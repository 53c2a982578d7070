"""Errors as clients of the OpenAI API read them: a status, and {"error": {message, type, param, code}}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.responses import JSONResponse

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_WHAT_IS_WRONG = {
    404: ("there is nothing at this address; /docs lists what there is", "not_found"),
    405: ("this address does not take this method; /docs lists those that it takes", None),
}
_MOST_SHOWN = 3  # faults of one request
_MOST_CHARACTERS = 300  # of a message that quotes what was sent


class ApiError(HTTPException):
    """What ends a request: one sentence, and where they help the field at fault and a code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = " ".join(message.split())
        super().__init__(status, message, dict(headers or {}))
        self.message, self.param, self.code = message, param, code

    @property
    def document(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.document, self.status_code, self.headers)


def of_http(error: AnyHTTPException) -> ApiError:
    """One that the framework raised: an address or a method that there is not."""
    if isinstance(error, ApiError):
        return error
    message, code = _WHAT_IS_WRONG.get(error.status_code, (str(error.detail), None))
    return ApiError(error.status_code, message, code=code, headers=error.headers)


def of_validation(faults: Sequence[Mapping[str, Any]]) -> ApiError:
    """What a schema found wrong, in one sentence; it quotes no more of a request than its fields' names."""
    first = _place(faults[0]) or None
    shown = "; ".join(_said(fault) for fault in faults[:_MOST_SHOWN])
    unknown = faults[0]["type"] == "extra_forbidden"
    return ApiError(
        400,
        shown[:_MOST_CHARACTERS],
        param=first and first[:_MOST_CHARACTERS],
        code="unknown_parameter" if unknown else None,
    )


def _place(fault: Mapping[str, Any]) -> str:
    """The field that is at fault, by the names and numbers on the way to it."""
    place = [str(part) for part in fault["loc"][1:]]
    if fault["type"] == "wrong":
        place.append(fault["ctx"]["field"])
    return ".".join(place)


def _said(fault: Mapping[str, Any]) -> str:
    where = _place(fault) or "the body"
    match fault["type"]:
        case "extra_forbidden":
            return f"{where} is not supported here: leave it out"
        case "missing":
            return f"{where} is missing"
        case "wrong":
            return f"{where} {fault['ctx']['what']}"
        case "value_error":
            return f"{where}: {fault['ctx']['error']}"
    message = str(fault["msg"])
    return f"{where}: {message[:1].lower()}{message[1:]}"
