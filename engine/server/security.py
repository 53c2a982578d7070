"""Who may ask: the bearer of the API key, and without a key this machine alone."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError

#: What says nothing of the model: whether the server lives, and how it is spoken to.
OPEN = frozenset({"/health", "/ready", "/docs", "/openapi.json", "/inspect"})


class Guard:
    """Lets nobody in without the key, where there is one."""

    def __init__(self, key: str | None) -> None:
        self._key = None if key is None else key.encode()

    def check(self, scope: Scope) -> None:
        """ApiError 401 where a request does not bring the key, and needs it."""
        if self._key is None or scope["path"] in OPEN or self._is_given(scope, self._key):
            return
        raise ApiError(
            401,
            "the API key is missing or wrong: send it as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _is_given(self, scope: Scope, key: bytes) -> bool:
        """Whether the key is the right one; how long that takes to say tells nothing of it."""
        kind, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), key)


class LocalOnly:
    """Answers those alone who ask for this machine by a name of its own.

    A website can give its name the address of its visitor's own machine, and its scripts then ask there
    as if they were at home (DNS rebinding). They cannot help saying by which name they ask.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
        if is_loopback(_without_port(host)):
            await self.app(scope, receive, send)
            return
        refused = ApiError(
            403,
            "without an API key only this machine is answered, as localhost; start the server with a key",
        )
        await refused.response(scope, receive, send)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    """Of the header's name or address, which may be one of IPv6 in brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
