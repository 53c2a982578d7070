"""What all answers have in common: who asks where, the envelope, and the usage."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Request

from engine.generate import Completion
from engine.server.desk import Desk, Served


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(_desk)]


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def envelope(desk: Desk, id: str, object: str, created: int) -> dict[str, Any]:
    return {"id": id, "object": object, "created": created, "model": desk.name}


def usage(done: Sequence[Completion], per_prompt: int) -> dict[str, int]:
    """Tokens of all prompts, each counted once, and of all answers that were made to them."""
    firsts = done[::per_prompt]
    total = {name: sum(one.usage[name] for one in firsts) for name in firsts[0].usage}
    return total
