"""Who may ask: the bearer of the API key."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError

#: What says nothing of the model: whether the server lives, and how it is spoken to.
OPEN = frozenset({"/health", "/ready", "/docs", "/openapi.json"})


class Guard:
    """Lets nobody in without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._is_given(scope):
            await self.app(scope, receive, send)
            return
        refused = ApiError(
            401,
            "the API key is missing or wrong: send it as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await refused.response(scope, receive, send)

    def _is_given(self, scope: Scope) -> bool:
        """Whether the key is the right one; how long that takes to say tells nothing of it."""
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, given = value.partition(b" ")
                return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key)
        return False
