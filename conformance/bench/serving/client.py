"""Asks a server for an answer, and writes down when each of its tokens came.

No library stands between: what is timed is the server, and a few lines that read HTTP.
"""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import StreamReader
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from engine.errors import LockstepError

Document = dict[str, Any]


@dataclass
class Asked:
    """A request: when it was due, when each piece of its answer came, and what became of it.

    Times are seconds by one clock. `outcome` is "done", the status of a refusal, or why there is no answer;
    "unfinished" until then.
    """

    due: float
    came: list[float] = field(default_factory=list)
    tokens: int = 0
    ended: float | None = None
    outcome: str = "unfinished"

    @property
    def first(self) -> float | None:
        """Seconds to the first token, from when it was due."""
        return self.came[0] - self.due if self.came else None

    @property
    def between(self) -> list[float]:
        """Seconds between tokens; those that come in one piece come at once."""
        return [later - earlier for earlier, later in zip(self.came, self.came[1:], strict=False)]


async def ask(port: int, document: Document, asked: Asked) -> None:
    """Asks for a streamed completion of `document`, and notes what comes until it ends, or the task does."""
    try:
        async for data in _events(port, document):
            if data == "[DONE]":
                asked.outcome = "done"
                break
            part = json.loads(data)
            if "error" in part:
                asked.outcome = str(part["error"]["message"])
                break
            tokens = sum(len(choice.get("token_ids") or ()) for choice in part["choices"])
            if tokens:
                asked.came.append(time.perf_counter())
                asked.tokens += tokens
    except _RefusedError as refused:
        asked.outcome = str(refused)
    except (OSError, EOFError, ValueError) as error:
        asked.outcome = f"broken: {error}"
    asked.ended = time.perf_counter()


class _RefusedError(LockstepError):
    """An answer that is no stream: its status."""


async def _events(port: int, document: Document) -> AsyncIterator[str]:
    """The data of the events of a stream."""
    body = json.dumps({**document, "stream": True, "return_token_ids": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        status = (await reader.readline()).split()
        if status[1:2] != [b"200"]:
            raise _RefusedError(b"".join(status[1:2]).decode() or "no answer")
        chunked = False
        while (line := await reader.readline()).strip():
            chunked |= line.lower().replace(b" ", b"").strip() == b"transfer-encoding:chunked"
        held = b""
        async for piece in _pieces(reader, chunked):
            *events, held = (held + piece).split(b"\n\n")
            for event in events:
                yield event.decode().removeprefix("data: ")
        raise EOFError("the stream ends without an end")
    finally:
        writer.close()


async def _pieces(reader: StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """A body as it comes (RFC 9112, section 7.1)."""
    if not chunked:
        while piece := await reader.read(1 << 16):
            yield piece
        return
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
