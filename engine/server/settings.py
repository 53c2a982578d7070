"""What the operator of a server decides; a request cannot change any of it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError
from engine.server.security import is_loopback


@dataclass(frozen=True)
class Settings:
    """Raises RequestError for what makes no sense.

    `served_name` is the model's name in the API, by default that of its folder or file. With `api_key`
    every request must bring it, but for those of `security.OPEN`. `max_queue` answers may wait beside
    those that run. `max_body` bounds a request in bytes, `request_timeout` its life in seconds, from its
    first byte to the answer's last; `shutdown_timeout` is what running requests are left when the server
    is told to stop. `cors_origins` are the sites whose scripts may ask; none may by default. With
    `log_prompts` the log has what was asked and answered; `docs` are the pages /docs and /openapi.json.
    `no_auth` lets a server be reached from elsewhere without a key.
    """

    served_name: str | None = None
    api_key: str | None = None
    max_queue: int = 128
    max_body: int = 2**20
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    cors_origins: tuple[str, ...] = ()
    log_prompts: bool = False
    docs: bool = True
    no_auth: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_queue", 0), ("max_body", 1), ("shutdown_timeout", 0)):
            if getattr(self, name) < least:
                raise RequestError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.request_timeout > 0:
            raise RequestError(f"request_timeout must be above 0, got {self.request_timeout}")
        if self.api_key is not None and not self.api_key.strip():
            raise RequestError("the API key must not be empty")
        if self.api_key is not None and not _can_be_sent(self.api_key):
            raise RequestError(
                "the API key must neither begin nor end with a blank, nor have line breaks or other "
                "control characters: no request could bring it"
            )

    def check_exposed(self, host: str) -> None:
        """Refuses to listen to other machines without a key, unless that is asked for."""
        if self.api_key is None and not self.no_auth and not is_loopback(host):
            raise RequestError(
                f"whoever reaches {host} could use the model: give an API key (--api-key or "
                "LOCKSTEP_API_KEY), or waive it with --no-auth"
            )


def _can_be_sent(key: str) -> bool:
    """Whether a header can hold it: blanks around a value are not part of it (RFC 9110, section 5.5)."""
    return key == key.strip() and key.isprintable()
